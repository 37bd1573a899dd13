// Measures Asynq's scheduled tasks on Redis; ../../README.md has the method that all drivers share.
//
// Asynq's documented fast settings: both intervals as short as is sensible (scheduled tasks are looked for every 5 s by
// default, pending ones every second when the queue was empty) and 20 workers; with 100 it handed over fewer when tried. Asynq
// cuts a due to whole seconds: a task may be handed over up to a second early, and its lateness is then negative.
package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"punctual/peers/measure"
)

const (
	checkInterval = time.Millisecond
	concurrency   = 20
	producers     = 16
)

type peer struct {
	redis  asynq.RedisConnOpt
	client *asynq.Client
}

func (p *peer) Version() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == "github.com/hibiken/asynq" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return ""
}

func (p *peer) Settings() string {
	return fmt.Sprintf("DelayedTaskCheckInterval and TaskCheckInterval %v, concurrency %d, %d producers",
		checkInterval, concurrency, producers)
}

// Asynq takes one task at a time: many producers keep Redis busy.
func (p *peer) Insert(phase string, tasks []measure.Task) error {
	var next atomic.Int64
	failures := make(chan error, producers)
	for range producers {
		go func() {
			for {
				index := int(next.Add(1)) - 1
				if index >= len(tasks) {
					failures <- nil
					return
				}
				task := asynq.NewTask("due", tasks[index].Payload)
				if _, err := p.client.Enqueue(task, asynq.Queue(phase), asynq.ProcessAt(tasks[index].Due)); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	var err error
	for range producers {
		err = errors.Join(err, <-failures)
	}
	return err
}

func (p *peer) Work(phase string, handle func([]byte)) (func(), error) {
	server := asynq.NewServer(p.redis, asynq.Config{
		Concurrency:              concurrency,
		Queues:                   map[string]int{phase: 1},
		DelayedTaskCheckInterval: checkInterval,
		TaskCheckInterval:        checkInterval,
		LogLevel:                 asynq.ErrorLevel,
	})
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		handle(task.Payload())
		return nil
	}))
	return server.Shutdown, err
}

func main() {
	measure.Run("asynq", func(server string) (measure.Peer, error) {
		redis, err := asynq.ParseRedisURI(server)
		if err != nil {
			return nil, err
		}
		return &peer{redis, asynq.NewClient(redis)}, nil
	})
}
