// kafka-go: a Writer, and a Reader in a group. Arguments: bootstrap address, topic, number of records. It prints each
// value that the group read, once a line.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	brokers, topic := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	writer := &kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 20 * time.Millisecond, Compression: kafka.Zstd,
	}
	messages := make([]kafka.Message, count)
	for number := range messages {
		value := []byte(fmt.Sprintf("plain %d", number))
		messages[number] = kafka.Message{Key: value, Value: value}
	}
	check(writer.WriteMessages(ctx, messages...))
	check(writer.Close())

	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: brokers, GroupID: "kafka-go", Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: time.Second,
	})
	for range count {
		message, err := reader.ReadMessage(ctx)
		check(err)
		fmt.Println(string(message.Value))
	}
	check(reader.Close())
}
