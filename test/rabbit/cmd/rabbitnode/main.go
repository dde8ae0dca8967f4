// Command rabbitnode runs a private RabbitMQ node for demonstrations: it
// prints the URI on one line and serves until SIGTERM or SIGINT.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"fleetd/test/rabbit"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "rabbitnode:", err)
		os.Exit(1)
	}
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	node, err := rabbit.Start(ctx)
	if err != nil {
		return err
	}
	fmt.Println(node.URI)
	<-ctx.Done()
	return node.Stop()
}
