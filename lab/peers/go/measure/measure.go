// Package measure runs the phases that all drivers share: see ../../README.md.
package measure

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	payloadBytes = 128
	warmUp       = 1000
	giveUp       = 30 * time.Second
)

// Task is one message and when it is due.
type Task struct {
	Payload []byte
	Due     time.Time
}

// Peer is what is measured.
type Peer interface {
	// Version tells which release is measured.
	Version() string
	// Settings tells what was set otherwise than by default.
	Settings() string
	// Insert returns once all tasks are stored. Each phase has a name and shares nothing with the others.
	Insert(phase string, tasks []Task) error
	// Work hands due tasks to handle, in any number of goroutines, until stop is called.
	Work(phase string, handle func(payload []byte)) (stop func(), err error)
}

type outcome struct {
	insert time.Duration
	base   time.Time
	starts []int64 // in nanoseconds since 1970
}

type lateness struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	Max  float64 `json:"max"`
	Min  float64 `json:"min"`
}

type report struct {
	Peer       string   `json:"peer"`
	Version    string   `json:"version"`
	Settings   string   `json:"settings"`
	Inserts    int      `json:"inserts_per_s"`
	Throughput int      `json:"throughput_per_s"`
	Lateness   lateness `json:"lateness_ms"`
	Tasks      int      `json:"tasks"`
	Rate       int      `json:"rate"`
	Seconds    int      `json:"seconds"`
	Payload    int      `json:"payload_bytes"`
}

// Run measures a peer as the command line says, prints the report and ends the process.
func Run(name string, connect func(server string) (Peer, error)) {
	server := flag.String("server", "", "its URL")
	tasks := flag.Int("tasks", 20000, "tasks that are due at once")
	rate := flag.Int("rate", 1000, "tasks due each second, for the lateness")
	seconds := flag.Int("seconds", 10, "for how long")
	flag.Parse()
	result, err := measure(name, *server, *tasks, *rate, *seconds, connect)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func measure(name, server string, tasks, rate, seconds int, connect func(string) (Peer, error)) (*report, error) {
	peer, err := connect(server)
	if err != nil {
		return nil, err
	}
	atOnce := func(int) time.Duration { return 0 }
	warm, err := run(peer, "warm", warmUp, 2*time.Second, atOnce)
	if err != nil {
		return nil, err
	}
	// Twice what inserting took while all was cold, and time for the worker to start.
	lead := func(count int) time.Duration {
		return 3*time.Second + 2*warm.insert*time.Duration(count)/warmUp
	}

	herd, err := run(peer, "herd", tasks, lead(tasks), atOnce)
	if err != nil {
		return nil, err
	}
	took := time.Unix(0, slices.Max(herd.starts)).Sub(herd.base)

	steadyDue := func(index int) time.Duration {
		return time.Duration(index*1000/rate) * time.Millisecond
	}
	steady, err := run(peer, "steady", rate*seconds, lead(rate*seconds), steadyDue)
	if err != nil {
		return nil, err
	}
	late := make([]time.Duration, len(steady.starts))
	for index, start := range steady.starts {
		late[index] = time.Unix(0, start).Sub(steady.base.Add(steadyDue(index)))
	}

	perSecond := func(took time.Duration) int { return int(math.Round(float64(tasks) / took.Seconds())) }
	return &report{
		Peer:       name,
		Version:    peer.Version(),
		Settings:   peer.Settings(),
		Inserts:    perSecond(herd.insert),
		Throughput: perSecond(took),
		Lateness:   percentiles(late),
		Tasks:      tasks,
		Rate:       rate,
		Seconds:    seconds,
		Payload:    payloadBytes,
	}, nil
}

// run inserts tasks, then lets a worker take them. dueOf tells how long after the first due a task is due.
func run(peer Peer, phase string, count int, lead time.Duration, dueOf func(index int) time.Duration) (*outcome, error) {
	// A whole second, because some peers cut a due to whole seconds.
	base := time.Now().Add(lead).Truncate(time.Second).Add(time.Second)
	tasks := make([]Task, count)
	for index := range tasks {
		tasks[index] = Task{fmt.Appendf(nil, "%-*d", payloadBytes, index), base.Add(dueOf(index))}
	}

	began := time.Now()
	if err := peer.Insert(phase, tasks); err != nil {
		return nil, err
	}
	insert := time.Since(began)
	if time.Until(base) < 500*time.Millisecond {
		return nil, fmt.Errorf("%d tasks took %v to insert: some were due before", count, insert)
	}

	starts := make([]int64, count)
	var handled atomic.Int64
	stop, err := peer.Work(phase, func(payload []byte) {
		at := time.Now().UnixNano()
		index, err := strconv.Atoi(strings.TrimRight(string(payload), " "))
		// A task that comes twice counts once.
		if err == nil && atomic.CompareAndSwapInt64(&starts[index], 0, at) {
			handled.Add(1)
		}
	})
	if err != nil {
		return nil, err
	}
	seen, progress := int64(0), base
	for handled.Load() < int64(count) {
		time.Sleep(20 * time.Millisecond)
		if now := handled.Load(); now > seen {
			seen, progress = now, time.Now()
		}
		if time.Since(progress) > giveUp && time.Since(base) > giveUp {
			return nil, fmt.Errorf("%d of %d tasks were handed over, then no more", seen, count)
		}
	}
	stop()
	return &outcome{insert, base, starts}, nil
}

func percentiles(late []time.Duration) lateness {
	slices.Sort(late)
	// By nearest rank: a lateness that did occur.
	at := func(percent float64) float64 {
		rank := max(int(math.Ceil(percent/100*float64(len(late)))), 1)
		return math.Round(float64(late[rank-1])/1e3) / 1e3
	}
	return lateness{at(50), at(90), at(99), at(99.9), at(100), at(0)}
}
