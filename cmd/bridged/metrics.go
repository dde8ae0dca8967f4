package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fleetd/inbox"
)

// metrics shows the counters that the parts keep; a registry of its own, so
// that nothing registers itself.
func (g *gateway) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{g})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

var (
	publishes = desc("bridged_publishes_total", "Publishes by the broker's word.", "outcome")
	refusals  = desc("bridged_refusals_total", "Messages refused, by reason.", "reason")
	dead      = desc("bridged_dead_letters_total", "Dead letters of our own, by queue and reason.", "queue", "reason")
	delivered = desc("bridged_delivered_total", "Verified mail handed on.")
	signals   = desc("bridged_signals_total", "Verified signals handed on.")
	parked    = desc("bridged_parked", "Messages that wait until the home of their sender is known.")
	connected = desc("bridged_connected", "1 while the broker is connected.")
	taken     = desc("bridged_handed_back_total", "Mail held for long, handed back and taken again before the broker's limit.")
	commits   = desc("bridged_store_commits_total", "Commits of the store.")
	unknown   = desc("bridged_unknown_kinds_total", "Messages of kinds that only a later version knows, let go.")
	healthy   = desc("bridged_store_healthy", "1 while the store takes writes.")
	held      = desc("bridged_held", "Mail that waits for its reader.", "name")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

type collector struct{ g *gateway }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{publishes, refusals, dead, delivered, signals, parked, connected, taken, unknown, commits, healthy, held} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	count(commits, c.g.store.Stats().Commits)
	gauge(healthy, oneIf(c.g.store.Healthy() == nil))
	for _, e := range c.g.inbox.Entities() {
		if !inbox.Ended(e) {
			gauge(held, float64(c.g.inbox.Held(e.GID)), e.Name)
		}
	}
	if c.g.fabric == nil {
		return
	}
	s := c.g.fabric.Stats()
	count(publishes, s.Confirmed, "confirmed")
	count(publishes, s.Returned, "returned")
	count(publishes, s.Nacked, "nacked")
	count(publishes, s.InDoubt, "in_doubt")
	count(publishes, s.Refused, "refused")
	count(delivered, s.Delivered)
	count(signals, s.Signals)
	count(taken, s.HandedBack)
	count(unknown, s.UnknownKinds)
	gauge(parked, float64(s.Parked))
	ready, _ := link(c).Connected()
	gauge(connected, oneIf(ready))
	for reason, n := range c.g.fabric.Refusals() {
		count(refusals, n, reason)
	}
	for key, n := range s.Dead {
		count(dead, n, key.Queue, key.Reason)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
