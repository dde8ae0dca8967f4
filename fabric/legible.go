package fabric

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// legible is a connection of which every message can be read. The library ends
// a connection over a header table that it does not take: too deep, too long,
// or with a type that it does not know. One such message, which any login can
// publish, would thus come back for ever and keep all others away. Its table is
// cut out before the library sees it: it arrives without headers, and is
// judged, moved or refused as that.
type legible struct {
	net.Conn
	in    *bufio.Reader
	frame []byte // a content header
	out   []byte // what of frame is not yet read
	pass  int64  // bytes of the present frame that go on as they are
	end   atomic.Pointer[error]
}

func newLegible(c net.Conn) *legible { return &legible{Conn: c, in: bufio.NewReaderSize(c, 32<<10)} }

// why is err, or what ended the connection where the library only says that it
// is not open: it does so to whoever writes after a reader was told the reason.
func (l *legible) why(err error) error {
	if end := l.end.Load(); end != nil && errors.Is(err, amqp.ErrClosed) {
		return *end
	}
	return err
}

// Read implements net.Conn.
func (l *legible) Read(p []byte) (int, error) {
	n, err := l.read(p)
	if err != nil {
		l.end.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (l *legible) read(p []byte) (int, error) {
	for len(l.out) == 0 && l.pass == 0 {
		if err := l.next(); err != nil {
			return 0, err
		}
	}
	if len(l.out) > 0 {
		n := copy(p, l.out)
		l.out = l.out[n:]
		return n, nil
	}
	n, err := l.in.Read(p[:min(int64(len(p)), l.pass)])
	l.pass -= int64(n)
	return n, err
}

// The frame of AMQP 0-9-1 §4.2.3: type, channel, size, payload, end.
const (
	frameHead     = 7
	frameEnd      = 1
	typeHeader    = 2
	maxHeaderSize = 1 << 20 // of a content header; frame_max is far below

	// tlsAlert is the type of the TLS record with which a port that expects TLS
	// answers plain AMQP; no frame has it.
	tlsAlert = 21
)

var errTLSPort = errors.New("its port speaks TLS, which amqps:// is for")

// next looks at the next frame.
func (l *legible) next() error {
	head, err := l.in.Peek(frameHead)
	if err != nil {
		return err
	}
	if head[0] == tlsAlert {
		return errTLSPort
	}
	size := int64(binary.BigEndian.Uint32(head[3:]))
	if head[0] != typeHeader || size > maxHeaderSize {
		l.pass = frameHead + size + frameEnd
		return nil
	}
	all := int(frameHead + size + frameEnd)
	l.frame = slices.Grow(l.frame[:0], all)[:all]
	if _, err := io.ReadFull(l.in, l.frame); err != nil {
		return err
	}
	l.out = withoutIllegible(l.frame)
	return nil
}

// The properties of a content header (§4.2.6.1) up to its table.
const (
	propsAt         = frameHead + 14 // class, weight, body size, flags
	flagContentType = 1 << 15
	flagEncoding    = 1 << 14
	flagHeaders     = 1 << 13
)

// withoutIllegible is frame, a content header, without its header table if that
// cannot be read. It writes into frame.
func withoutIllegible(frame []byte) []byte {
	if len(frame) < propsAt+frameEnd {
		return frame
	}
	flags := binary.BigEndian.Uint16(frame[propsAt-2:])
	if flags&flagHeaders == 0 {
		return frame
	}
	rest := frame[propsAt : len(frame)-frameEnd]
	for _, before := range []uint16{flagContentType, flagEncoding} {
		if flags&before != 0 {
			if _, rest = shortString(rest); rest == nil {
				return frame
			}
		}
	}
	table, after, ok := longString(rest)
	if !ok || readable(table, true, 0) { // no broker sends one that is cut off
		return frame
	}
	at := len(frame) - frameEnd - len(rest)
	binary.BigEndian.PutUint16(frame[propsAt-2:], flags&^flagHeaders)
	n := at + copy(frame[at:], after)
	frame[n] = frame[len(frame)-frameEnd]
	binary.BigEndian.PutUint32(frame[3:], uint32(n-frameHead))
	return frame[:n+frameEnd]
}

// What a header table may have; well below the bounds of the library, and far
// above what anybody needs.
const (
	maxTableDepth  = 16
	maxTableFields = 1024
)

// readable reports whether b holds the fields of a table, or of an array, in a
// form that the library takes.
func readable(b []byte, table bool, depth int) bool {
	if depth > maxTableDepth {
		return false
	}
	for fields := 0; len(b) > 0; fields++ {
		if fields == maxTableFields {
			return false
		}
		if table {
			if _, b = shortString(b); len(b) == 0 {
				return false
			}
		}
		kind, rest := b[0], b[1:]
		size, ok := fixed[kind]
		if !ok {
			var inner []byte
			if inner, b, ok = longString(rest); !ok {
				return false
			}
			switch kind {
			case 'S', 'x':
			case 'A', 'F':
				if !readable(inner, kind == 'F', depth+1) {
					return false
				}
			default:
				return false
			}
			continue
		}
		if len(rest) < size {
			return false
		}
		b = rest[size:]
	}
	return true
}

// fixed is the size of a field by its type, where the type says it.
var fixed = map[byte]int{
	't': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'f': 4, 'l': 8, 'd': 8, 'T': 8, 'D': 5, 'V': 0,
}

// shortString takes a short string off b; rest is nil if there is none.
func shortString(b []byte) (s, rest []byte) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, nil
	}
	return b[1 : 1+int(b[0])], b[1+int(b[0]):]
}

// longString takes a long string, a table or an array off b.
func longString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if uint64(len(b)-4) < n {
		return nil, nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}
