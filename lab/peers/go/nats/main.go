// Measures the message schedules of NATS JetStream; ../../README.md has the method that all drivers share.
//
// The documented fast settings: asynchronous publishing, a stream in memory (nothing else here is written to disk either)
// and a pull consumer without acknowledgements that asks for thousands of messages at a time. The server itself is left at
// its defaults: how often it looks for due schedules cannot be set.
package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"punctual/peers/measure"
)

const pending = 4096

// How long the client waits for a confirmation when so many are missing; by default it fails after 200 ms.
const patience = 30 * time.Second

type peer struct {
	connection *nats.Conn
	streams    jetstream.JetStream
	failed     chan error
}

func (p *peer) Version() string { return p.connection.ConnectedServerVersion() }

func (p *peer) Settings() string {
	return fmt.Sprintf("asynchronous publishing, %d unconfirmed; stream in memory; pull consumer of %d, no acknowledgements",
		pending, pending)
}

func (p *peer) Insert(phase string, tasks []measure.Task) error {
	_, err := p.streams.CreateStream(context.Background(), jetstream.StreamConfig{
		Name:              phase,
		Subjects:          []string{phase + ".later.*", phase + ".due"},
		Storage:           jetstream.MemoryStorage,
		AllowMsgSchedules: true,
	})
	if err != nil {
		return err
	}
	for index, task := range tasks {
		message := nats.NewMsg(phase + ".later." + strconv.Itoa(index)) // a schedule has its subject to itself
		message.Header.Set("Nats-Schedule", "@at "+task.Due.UTC().Format(time.RFC3339Nano))
		message.Header.Set("Nats-Schedule-Target", phase+".due")
		message.Data = task.Payload
		if _, err := p.streams.PublishMsgAsync(message, jetstream.WithStallWait(patience)); err != nil {
			return err
		}
	}
	<-p.streams.PublishAsyncComplete()
	select {
	case err := <-p.failed:
		return err
	default:
		return nil
	}
}

func (p *peer) Work(phase string, handle func([]byte)) (func(), error) {
	consumer, err := p.streams.CreateConsumer(context.Background(), phase, jetstream.ConsumerConfig{
		FilterSubject: phase + ".due",
		AckPolicy:     jetstream.AckNonePolicy,
		MemoryStorage: true,
	})
	if err != nil {
		return nil, err
	}
	consuming, err := consumer.Consume(func(message jetstream.Msg) { handle(message.Data()) }, jetstream.PullMaxMessages(pending))
	if err != nil {
		return nil, err
	}
	return func() {
		consuming.Stop()
		_ = p.streams.DeleteStream(context.Background(), phase)
	}, nil
}

func main() {
	measure.Run("nats", func(server string) (measure.Peer, error) {
		connection, err := nats.Connect(server)
		if err != nil {
			return nil, err
		}
		failed := make(chan error, 1)
		streams, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(pending),
			jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) {
				select {
				case failed <- err:
				default:
				}
			}))
		return &peer{connection, streams, failed}, err
	})
}
