module punctual/peers

go 1.25.0

require (
	github.com/hibiken/asynq v0.26.0
	github.com/nats-io/nats.go v1.48.0
)
