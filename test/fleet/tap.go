package fleet

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
)

// TapHerdr puts before between the gateway and its herdr: it is called with the
// method of every request before herdr gets it, may take its time, and says
// whether the request goes on; one that does not ends without an answer. The
// returned function takes the tap away and waits for the requests under way.
//
// The tap takes the place of the socket file in one step, so that no client
// meets a moment without herdr.
func (h *Host) TapHerdr(before func(method string) (pass bool)) (remove func() error, err error) {
	path := h.Herdr.SocketPath()
	aside, fresh := path+".herdr", path+".tap"
	if err := os.Link(path, aside); err != nil {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, os.Remove(aside))
	}
	ln.SetUnlinkOnClose(false)
	t := &tap{ln: ln, herdr: aside, before: before}
	t.wg.Go(t.accept)
	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(err, t.close(), os.Remove(fresh), os.Remove(aside))
	}
	return func() error { return errors.Join(os.Rename(aside, path), t.close()) }, nil
}

type tap struct {
	ln     *net.UnixListener
	herdr  string // its socket
	before func(string) bool
	wg     sync.WaitGroup
}

func (t *tap) close() error {
	err := t.ln.Close()
	t.wg.Wait()
	return err
}

func (t *tap) accept() {
	for {
		conn, err := t.ln.Accept()
		if err != nil {
			return // closed
		}
		t.wg.Go(func() { t.pass(conn) })
	}
}

// pass hands over one request and its answer (herdr socket reference §1.3). An
// end that is gone needs no word: the other one sees its connection close.
func (t *tap) pass(conn net.Conn) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return
	}
	var request struct{ Method string }
	if json.Unmarshal(line, &request) == nil && !t.before(request.Method) {
		return
	}
	herdr, err := net.Dial("unix", t.herdr)
	if err != nil {
		return
	}
	defer herdr.Close()
	if _, err := herdr.Write(line); err == nil {
		_, _ = io.Copy(conn, herdr)
	}
}
