package e2e

import (
	"context"
	"fmt"
	"testing"

	"fleetd/fault"
	"fleetd/mcp"
)

// Whoever another host sees can be written to. Fails when an entity is
// announced before its inbox is on the broker: the first message to it comes
// back as UNROUTABLE.
func TestANewcomerCanBeWrittenToAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	boss := addMain(t, ctx, a, "boss")
	for i := range 20 {
		name := fmt.Sprintf("newcomer-%d", i)
		registered := make(chan error, 1)
		go func() {
			_, err := b.Register(ctx, mcp.RegisterArgs{Name: name, Kind: "main"})
			registered <- err
		}()
		for {
			r, err := a.API(boss.Name).Send(ctx, mcp.SendArgs{To: name + "@hostb", Content: "welcome"})
			if fault.Is(err, fault.UnknownRecipient) && ctx.Err() == nil {
				continue
			}
			if err != nil || r.State != mcp.StateQueued {
				t.Errorf("the first message to %s: %q, %v", name, r.State, err)
			}
			break
		}
		if err := <-registered; err != nil {
			t.Fatal(err)
		}
	}
}
