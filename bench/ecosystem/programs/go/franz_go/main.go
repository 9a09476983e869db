// A franz-go client of a secured cluster: it produces, reads in a group of two, and copies in transactions that move
// the group's offsets (exactly once). What it is to do comes as JSON on its input, what it saw goes as JSON to its output.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type wanted struct {
	Bootstrap, CA, Mechanism, User, Secret string
	Input, Output, Name                    string
	Records                                int
}

type seen struct {
	Produced, Read, Copied, Members int
	Refused                         string
}

func (w wanted) mechanism() sasl.Mechanism {
	switch w.Mechanism {
	case "PLAIN":
		return plain.Auth{User: w.User, Pass: w.Secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: w.User, Pass: w.Secret}.AsSha256Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: w.Secret}.AsMechanism()
	default:
		return scram.Auth{User: w.User, Pass: w.Secret}.AsSha512Mechanism()
	}
}

func (w wanted) options(more ...kgo.Opt) []kgo.Opt {
	pem, err := os.ReadFile(w.CA)
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		check(fmt.Errorf("no certificate in %s", w.CA))
	}
	return append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(w.Bootstrap, ",")...),
		kgo.DialTLSConfig(&tls.Config{RootCAs: roots}),
		kgo.SASL(w.mechanism()),
	}, more...)
}

func (w wanted) produce(ctx context.Context, into *seen) {
	client, err := kgo.NewClient(w.options(kgo.DefaultProduceTopic(w.Input))...)
	check(err)
	defer client.Close()
	records := make([]*kgo.Record, w.Records)
	for number := range records {
		text := fmt.Sprintf("%s %d", w.Name, number)
		records[number] = &kgo.Record{Key: []byte(text), Value: []byte(text)}
	}
	results := client.ProduceSync(ctx, records...)
	check(results.FirstErr())
	into.Produced = len(results)
}

// refused asks about our topic, which needs a login and the right to describe; clients that produce or read
// would try again and again.
func (w wanted) refused(ctx context.Context) string {
	client, err := kgo.NewClient(w.options()...)
	check(err)
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		check(ctx.Err())
		return err.Error()
	}
	request := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(w.Input)
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(ctx, client)
	check(err)
	if err := kerr.ErrorForCode(answer.Topics[0].ErrorCode); err != nil {
		return err.Error()
	}
	return ""
}

// read lets two members share a group until they have seen every record of ours, each once. The records are produced once
// both have partitions.
func (w wanted) read(ctx context.Context, into *seen) {
	var lock sync.Mutex
	var members sync.WaitGroup
	found := map[string]int{}
	done, finish := context.WithCancel(ctx)
	defer finish()
	ready := make(chan bool, 2)
	for range 2 {
		var once sync.Once
		assigned := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			if len(partitions) > 0 {
				once.Do(func() { ready <- true })
			}
		}
		client, err := kgo.NewClient(w.options(
			kgo.ConsumerGroup(w.Name+" readers"), kgo.ConsumeTopics(w.Input), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.OnPartitionsAssigned(assigned),
		)...)
		check(err)
		members.Go(func() {
			defer client.Close()
			read := 0
			for {
				fetches := client.PollFetches(done)
				if done.Err() != nil {
					break
				}
				check(fetches.Err())
				lock.Lock()
				fetches.EachRecord(func(record *kgo.Record) {
					if strings.HasPrefix(string(record.Value), w.Name+" ") {
						found[string(record.Value)]++
						read++
					}
				})
				if len(found) == w.Records {
					finish()
				}
				lock.Unlock()
				check(client.CommitUncommittedOffsets(ctx))
			}
			lock.Lock()
			if read > 0 {
				into.Members++
			}
			lock.Unlock()
		})
	}
	for range 2 {
		select {
		case <-ready:
		case <-ctx.Done():
			check(ctx.Err())
		}
	}
	w.produce(ctx, into)
	members.Wait()
	check(ctx.Err())
	into.Read = len(found)
}

// copy reads, writes and commits offsets in transactions; every second one is aborted first and done again.
func (w wanted) copy(ctx context.Context, into *seen) {
	session, err := kgo.NewGroupTransactSession(w.options(
		kgo.TransactionalID(w.Name+" copier"), kgo.DefaultProduceTopic(w.Output),
		kgo.ConsumerGroup(w.Name+" copiers"), kgo.ConsumeTopics(w.Input), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)...)
	check(err)
	defer session.Close()
	for turn := 0; into.Copied < w.Records; turn++ {
		fetches := session.PollRecords(ctx, 100)
		check(fetches.Err())
		check(session.Begin())
		copied := 0
		fetches.EachRecord(func(record *kgo.Record) {
			if strings.HasPrefix(string(record.Value), w.Name+" ") {
				session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, func(_ *kgo.Record, err error) { check(err) })
				copied++
			}
		})
		check(session.Client().Flush(ctx)) // so that an abort finds them written
		committed, err := session.End(ctx, kgo.TransactionEndTry(turn%2 == 1))
		check(err)
		if committed {
			into.Copied += copied
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var todo wanted
	check(json.NewDecoder(os.Stdin).Decode(&todo))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var found seen
	if found.Refused = todo.refused(ctx); found.Refused == "" {
		todo.read(ctx, &found)
		todo.copy(ctx, &found)
	}
	check(json.NewEncoder(os.Stdout).Encode(found))
}
