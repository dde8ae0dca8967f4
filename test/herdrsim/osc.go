package herdrsim

import (
	"bytes"
)

// oscFilter takes operating system commands (ESC ] … BEL or ESC \) out of a
// program's output and keeps the window title. The emulator would end them at
// any byte 0x9c, which is in the middle of many characters of UTF-8, and draw
// the rest.
type oscFilter struct {
	pending []byte // an unfinished command, or a lone ESC
	title   string
}

// maxOSC bounds a command that never ends; what is longer is drawn.
const maxOSC = 64 << 10

// filter returns b without commands; an unfinished one waits for the next call.
func (f *oscFilter) filter(b []byte) []byte {
	in := append(f.pending, b...)
	f.pending = nil
	var out []byte
	for len(in) > 0 {
		i := bytes.IndexByte(in, 0x1b)
		if i < 0 {
			return append(out, in...)
		}
		out, in = append(out, in[:i]...), in[i:]
		if len(in) == 1 {
			f.pending = in
			return out
		}
		if in[1] != ']' {
			out, in = append(out, in[0]), in[1:]
			continue
		}
		end, after := oscEnd(in)
		if end < 0 {
			if len(in) > maxOSC {
				return append(out, in...)
			}
			f.pending = in
			return out
		}
		f.command(in[2:end])
		in = in[after:]
	}
	return out
}

// oscEnd finds where a command ends and what follows begins.
func oscEnd(in []byte) (end, after int) {
	for i := 2; i < len(in); i++ {
		switch {
		case in[i] == 0x07:
			return i, i + 1
		case in[i] == 0x1b && i+1 < len(in) && in[i+1] == '\\':
			return i, i + 2
		}
	}
	return -1, -1
}

func (f *oscFilter) command(body []byte) {
	number, text, _ := bytes.Cut(body, []byte(";"))
	if n := string(number); n == "0" || n == "2" {
		f.title = string(text)
	}
}
