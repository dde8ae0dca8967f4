package e2e

import (
	"context"
	"testing"

	"fleetd/fault"
	"fleetd/mcp"
)

// A client whose token was replaced, or whose entity was unregistered, waits
// for no mail any more, whether it showed the token or speaks for the
// entity as the host's own user. Fails when the wait goes on, or mail goes to it.
func TestARevokedPollEnds(t *testing.T) {
	t.Attr("threat", "U4")
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := addHost(t, ctx, newFleet(t, ""), "hosta")
	alice, bob := addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	poll := func(token string) <-chan error {
		c := a.API("bob")
		c.Token = token
		ended := make(chan error, 1)
		go func() {
			got, err := c.Poll(ctx, mcp.PollArgs{WaitSeconds: longest})
			if err == nil {
				t.Errorf("a poll came to %+v", got)
			}
			ended <- err
		}()
		return ended
	}
	byToken := poll(bob.Token)
	r, err := a.Register(ctx, mcp.RegisterArgs{Name: "bob", Kind: "main", NewToken: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-byToken; !fault.Is(err, fault.NotAuthenticated) {
		t.Errorf("under the old token: %v", err)
	}
	bob.Token = r.Token
	reconnect(t, ctx, bob)
	if _, err := alice.Send(ctx, map[string]any{"to": "bob", "content": "hello"}); err != nil {
		t.Fatal(err)
	}
	if got, err := bob.Poll(ctx, map[string]any{"wait_seconds": longest}); err != nil || len(got.Messages) != 1 || got.Messages[0].Redelivered {
		t.Errorf("under the new token: %+v, %v", got, err)
	}
	byToken, byName := poll(bob.Token), poll("")
	if _, err := a.API("").Unregister(ctx, mcp.UnregisterArgs{Name: "bob"}); err != nil {
		t.Fatal(err)
	}
	for who, ended := range map[string]<-chan error{"by token": byToken, "by name": byName} {
		if err := <-ended; !fault.Is(err, fault.NotAuthenticated) {
			t.Errorf("unregistered, %s: %v", who, err)
		}
	}
}
