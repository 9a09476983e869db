// sarama: an idempotent producer, transactions of which one is aborted, and a group that reads committed records.
// Arguments: bootstrap address, topic, number of records. It prints each value that the group read, once a line.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func producer(brokers []string, transactionalID string) sarama.SyncProducer {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = transactionalID
	config.Net.MaxOpenRequests = 1
	made, err := sarama.NewSyncProducer(brokers, config)
	check(err)
	return made
}

func messages(topic, text string, count int) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, count)
	for number := range made {
		value := sarama.StringEncoder(fmt.Sprintf("%s %d", text, number))
		made[number] = &sarama.ProducerMessage{Topic: topic, Key: value, Value: value}
	}
	return made
}

type reader struct {
	values chan string
}

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		r.values <- string(message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func main() {
	brokers, topic := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)

	plain := producer(brokers, "")
	check(plain.SendMessages(messages(topic, "plain", count)))
	check(plain.Close())
	inTransaction := producer(brokers, "sarama")
	for _, text := range []string{"aborted", "committed"} {
		check(inTransaction.BeginTxn())
		check(inTransaction.SendMessages(messages(topic, text, count)))
		if text == "aborted" {
			check(inTransaction.AbortTxn())
		} else {
			check(inTransaction.CommitTxn())
		}
	}
	check(inTransaction.Close())

	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	group, err := sarama.NewConsumerGroup(brokers, "sarama", config)
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	found := reader{make(chan string)}
	go func() {
		for ctx.Err() == nil {
			check(group.Consume(ctx, []string{topic}, found))
		}
	}()
	for range 2 * count {
		select {
		case value := <-found.values:
			fmt.Println(value)
		case <-ctx.Done():
			check(ctx.Err())
		}
	}
	cancel()
	check(group.Close())
}
