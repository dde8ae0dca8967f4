package inbox

import "testing"

// Fails if control.allow does not stop a host that is listed without send, or
// its sender is not told why.
func TestABriefOfAHostThatMayNotSendIsRefusedAndReported(t *testing.T) {
	t.Attr("threat", "G4")
	w := newWorldOn(t, openStore(t))
	t.Cleanup(w.stop)
	w.begin(func(c *Config) { c.Allowed = func(host string) bool { return host != there } })
	e := w.main("m")
	env := w.mail("SEND", e.GID, "x")
	same(t, "copy", "rejected", w.broker.state(w.broker.publish(e.GID, env)))
	w.awaitEnd(env, "FAILED NOT_ALLOWED")
	same(t, "held", 0, w.in.Held(e.GID))
}
