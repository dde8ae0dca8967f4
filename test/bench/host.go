package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"fleetd/test/rabbit"
)

// host is what all lines share: how to measure, a directory on a real disk,
// and the broker, started by the first line that needs one.
type host struct {
	rounds   int
	steps    bool
	oursOnly bool
	dir      string
	node     *rabbit.Node
}

func newHost(rounds int, steps, oursOnly bool) (*host, error) {
	dir, err := os.MkdirTemp("", "bench") // short: unix socket paths end at 107 bytes
	return &host{rounds: rounds, steps: steps, oursOnly: oursOnly, dir: dir}, err
}

// broker is the address of the private node of this run.
func (h *host) broker(ctx context.Context) (string, error) {
	if h.node == nil {
		var err error
		if h.node, err = rabbit.Start(ctx); err != nil {
			return "", fmt.Errorf("start a private broker: %w", err)
		}
	}
	return h.node.URI, nil
}

func (h *host) close() error {
	var errs []error
	if h.node != nil {
		errs = append(errs, h.node.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}
