package store

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"fleetd/migrations"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
)

// The test binary runs itself as a child, to be killed.
const (
	childRole = "STORE_TEST_CHILD"
	childDir  = "STORE_TEST_DIR"

	roleWrite   = "write"   // writes for ever, one line per acknowledged write
	roleMigrate = "migrate" // takes one new schema step and stops in the middle of the next
	roleCompact = "compact" // compacts for ever
)

// child is a running copy of the test binary.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Reader
}

func startChild(t *testing.T, role, dir string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, lines: bufio.NewReader(out)}
	t.Cleanup(func() { c.kill() })
	return c
}

// line returns the child's next line.
func (c *child) line(t *testing.T) string {
	t.Helper()
	line, err := c.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the child ended: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// kill ends the child with SIGKILL and returns the whole lines it had still
// written.
func (c *child) kill() []string {
	_ = c.cmd.Process.Kill()
	rest, _ := io.ReadAll(c.lines)
	_ = c.cmd.Wait()
	lines := strings.Split(string(rest), "\n")
	return lines[:len(lines)-1]
}

func runChild(role, dir string) int {
	opts := Options{Dir: dir, Steps: migrations.Steps}
	if role == roleMigrate {
		opts.Steps = append(nextSteps(addBucket), halfStep)
	}
	s, err := Open(context.Background(), opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	for role == roleCompact {
		if _, _, err := s.Compact(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			return 1
		}
	}
	fmt.Println("open")
	go func() { _ = s.Run(context.Background()) }()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { writeForEver(s) })
	}
	wg.Wait()
	return 1
}

// writeForEver writes records of several families in one transaction each and
// says their id once the store has acknowledged them.
func writeForEver(s *Store) {
	for {
		id := uuid.Must(uuid.NewV7()).String()
		err := s.Write(context.Background(), func(tx *Tx) error { return putFamily(tx, id) })
		if err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			return
		}
		fmt.Println(id)
	}
}

// halfStep is a schema step that never ends.
func halfStep(tx *bolt.Tx) error {
	if err := tx.DeleteBucket([]byte(bucketEntities)); err != nil {
		return err
	}
	fmt.Println("in step")
	select {}
}
