package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fleetd/fabric"
	"fleetd/fabric/roster"
)

// metrics shows the counters that the parts keep; a registry of its own, so
// that nothing registers itself.
func (g *gateway) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{g})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

type collector struct{ g *gateway }

// Describe names nothing beforehand: what there is is said by Collect.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := series(ch)
	c.store(s)
	for _, e := range c.g.inbox.Entities() {
		if !e.Ended() {
			s.gauge("held", "Mail that waits for its reader.", float64(c.g.inbox.Held(e.GID)), "name", e.Name)
		}
	}
	if c.g.fabric != nil {
		c.broker(s, c.g.fabric.Stats())
		c.presence(s, c.g.roster.Stats())
	}
}

func (c collector) store(s series) {
	st := c.g.store.Stats()
	s.gauge("store_healthy", "1 while the store takes writes.", oneIf(c.g.store.Healthy() == nil))
	s.count("store_commits_total", "Commits of the store.", st.Commits)
	s.count("store_failures_total", "Commits that failed.", st.Failures)
	s.count("store_lost_total", "Records that were to ride with a commit and were lost by a failure; they are asked for again.", st.LaterLost)
	s.count("store_trace_lost_total", "Steps of flows that the trace log lost.", st.TraceDropped)
	s.gauge("store_bytes", "Size of the store's file.", float64(st.FileBytes))
	s.gauge("store_free_bytes", "What of it can be used again; `bridged store compact` gives it back.", float64(st.FreeBytes))
}

func (c collector) broker(s series, st fabric.Stats) {
	ready, _ := link(c).Connected()
	s.gauge("connected", "1 while the broker is connected.", oneIf(ready))
	s.count("connections_lost_total", "Connections to the broker that were lost.", st.SessionsLost)
	for outcome, n := range map[string]uint64{"confirmed": st.Confirmed, "returned": st.Returned, "nacked": st.Nacked, "in_doubt": st.InDoubt, "refused": st.Refused} {
		s.count("publishes_total", "Publishes by the broker's word.", n, "outcome", outcome)
	}
	s.count("delivered_total", "Verified mail handed on.", st.Delivered)
	s.count("signals_total", "Verified signals handed on.", st.Signals)
	s.count("signals_dropped_total", "Signals and control requests let go because nobody knew their sender's home.", st.Dropped)
	s.count("handed_back_total", "Mail held for long, handed back and taken again before the broker's limit.", st.HandedBack)
	s.count("unknown_kinds_total", "Messages of kinds that only a later version knows, let go.", st.UnknownKinds)
	s.count("unsupported_control_total", "Control messages that nobody here serves, let go.", st.Unsupported)
	s.gauge("parked", "Messages that wait until the home of their sender is known.", float64(st.Parked))
	for reason, n := range c.g.fabric.Refusals() {
		s.count("refusals_total", "Messages refused, by reason.", n, "reason", reason)
	}
	for key, n := range st.Dead {
		s.count("dead_letters_total", "Dead letters of our own, by queue and reason.", n, "queue", key.Queue, "reason", key.Reason)
	}
	s.count("foreign_dead_letters_total", "Dead letters of others, let go.", st.ForeignDead)
}

func (c collector) presence(s series, st roster.Stats) {
	for what, n := range map[string]uint64{
		"published": st.Published, "not_published": st.PublishFailed, "news": st.Handled, "old": st.Old,
		"malformed": st.Malformed, "clone": st.Clones, "solicitation": st.Solicited,
	} {
		s.count("presence_total", "Presence messages, by what became of them; clone: another gateway uses our host id.", n, "what", what)
	}
	s.count("entities_refused_total", "Entities of other hosts that are not believed, such as a claim of another host's.", st.Refused)
	s.count("entities_over_total", "Entities beyond the most that one host may have.", st.Overflow)
}

// series is where figures go.
type series chan<- prometheus.Metric

func (s series) count(name, help string, n uint64, labels ...string) {
	s.put(prometheus.CounterValue, name, help, float64(n), labels)
}

func (s series) gauge(name, help string, n float64, labels ...string) {
	s.put(prometheus.GaugeValue, name, help, n, labels)
}

// put takes labels as pairs of name and value.
func (s series) put(kind prometheus.ValueType, name, help string, n float64, labels []string) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc("bridged_"+name, help, names, nil), kind, n, values...)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
