package main

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"math"
	"os"
	"strconv"
	"syscall"
	"time"

	"fleetd/fabric/envelope"
)

// cpu is the processor time that a message cost so far: of this process, which
// is both gateways or the raw path's clients, and of the broker.
type cpu struct {
	messages    int
	own, broker time.Duration
}

// spend runs fn, which moves so many messages, and adds what it cost.
func (c *cpu) spend(h *host, messages int, fn func() (float64, error)) (float64, error) {
	own, broker := ownCPU(), h.brokerCPU()
	x, err := fn()
	c.messages += messages
	c.own += ownCPU() - own
	c.broker += h.brokerCPU() - broker
	return x, err
}

// String is the cost of one message.
func (c *cpu) String() string {
	each := func(d time.Duration) int64 { return d.Microseconds() / int64(max(c.messages, 1)) }
	if c.broker == 0 {
		return fmt.Sprintf("%d µs", each(c.own))
	}
	return fmt.Sprintf("%d + broker %d µs", each(c.own), each(c.broker))
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// tick is the unit of /proc/PID/stat, which is the same on every Linux.
const tick = 10 * time.Millisecond

// brokerCPU is 0 where there is no /proc.
func (h *host) brokerCPU() (sum time.Duration) {
	if h.node == nil {
		return 0
	}
	for _, pid := range h.node.Pids() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// What follows the name, which stands in brackets and may hold blanks;
		// utime and stime are the 12th and 13th of it.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		for _, f := range fields[min(11, len(fields)):min(13, len(fields))] {
			n, err := strconv.ParseInt(string(f), 10, 64)
			if err == nil {
				sum += time.Duration(n) * tick
			}
		}
	}
	return sum
}

// signature is how long one message takes to be signed and verified, undisturbed:
// the least of many.
func (p *pair) signature() (time.Duration, error) {
	now := time.Now()
	env := &envelope.Envelope{
		Kind: envelope.Send, MsgID: newID(), TraceID: newTrace(), From: p.lead, To: p.boss, Signer: p.a.host,
		TS: now.UnixMilli(), ExpiresAt: now.Add(time.Minute).UnixMilli(), Body: body,
	}
	known := trust{p.a.host: {p.a.key.Public().(ed25519.PublicKey)}}
	least := time.Duration(math.MaxInt64)
	for range 200 {
		begin := time.Now()
		if err := env.Sign(p.a.key); err != nil {
			return 0, err
		}
		if err := env.Verify(known); err != nil {
			return 0, err
		}
		least = min(least, time.Since(begin))
	}
	return least, nil
}
