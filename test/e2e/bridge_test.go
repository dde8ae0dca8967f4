package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"fleetd/mcp"

	"golang.org/x/sys/unix"
)

// A stdio bridge that dies with mail in its hands has not delivered it: another
// client gets it at once. Fails when it stays hidden for as long as a bridge
// that hangs is waited for.
func TestMailOfADeadBridgeComesAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := addHost(t, ctx, newFleet(t, ""), "hosta")
	alice, bob := addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	sent, err := alice.Send(ctx, map[string]any{"to": "bob", "content": "hello"})
	if err != nil {
		t.Fatal(err)
	}
	bridge := a.Command(ctx, "mcp")
	bridge.Env = append(bridge.Env, "BRIDGED_TOKEN="+bob.Token)
	in, err := bridge.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := bridge.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Nobody reads, and the pipe is full: what the bridge has, it keeps.
	full, ok := bridge.Stdout.(*os.File)
	if !ok {
		t.Fatalf("standard output is a %T", bridge.Stdout)
	}
	if err := fill(full); err != nil {
		t.Fatal(err)
	}
	if err := bridge.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = bridge.Process.Kill()
			_ = out.Close()
			_ = bridge.Wait() // it was killed
		}
	}
	defer end()
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bridge_poll","arguments":{}}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		var who mcp.WhoamiResult
		if err := bob.Call(ctx, "bridge_whoami", map[string]any{}, &who); err != nil {
			return err
		}
		if len(who.OpenBriefs) != 1 || who.OpenBriefs[0].MsgID != sent.MsgID {
			return fmt.Errorf("the bridge has fetched nothing: %+v", who)
		}
		return nil
	})
	end()
	got, err := bob.Poll(ctx, map[string]any{"wait_seconds": 20})
	if err != nil || len(got.Messages) != 1 || got.Messages[0].MsgID != sent.MsgID || !got.Messages[0].Redelivered {
		t.Errorf("after its end: %+v, %v", got, err)
	}
}

// fill writes to a pipe until it takes no more.
func fill(pipe *os.File) error {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for failed == nil {
			_, failed = unix.Write(int(fd), make([]byte, 4096))
		}
	})
	if !errors.Is(failed, unix.EAGAIN) {
		return failed
	}
	return err
}
