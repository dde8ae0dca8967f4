package herdr

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// Fault: a character is cleaned into another form than a person and the agents
// agree on.
func TestClean(t *testing.T) {
	t.Attr("threat", "T1 T3")
	for in, want := range map[string]string{
		"a\r\nb\rc\n":                         "a\nb\nc",
		"\n\n  a \n b\t\n\n":                  "a \n b",
		"a\tb":                                "a    b",
		"x\x1b[201~\rrm -rf /\r":              "x␛[201~\nrm -rf /",
		"\x00\x07\x7f\x0b":                    "␀␇␡␋",
		"\u009b31m \u0085":                    "⟨U+009B⟩31m ⟨U+0085⟩",
		"a\x9b201~b\xff":                      "a⟨0x9B⟩201~b⟨0xFF⟩",
		"\x1b\x1b[[":                          "␛␛[[",
		"see @real.txt, x@y":                  "see ＠real.txt, x＠y",
		"e\u0301":                             "é",
		"a\u2028b\u202ec\u2066d\u200be\ufeff": "a⟨U+2028⟩b⟨U+202E⟩c⟨U+2066⟩d⟨U+200B⟩e⟨U+FEFF⟩",
		"hi\U000e0041\U000e0100":              "hi⟨U+E0041⟩⟨U+E0100⟩",
		"👩\u200d💻 ❤\ufe0f":                    "👩\u200d💻 ❤\ufe0f",
		"日本語 мир $X `y` \\":                   "日本語 мир $X `y` \\",
		"!ls":                                 "!ls",
		"":                                    "",
		"\t\r\n ":                             "",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) is %q, want %q", in, got, want)
		}
	}
}

// checkClean holds what must be true of every cleaned text.
func checkClean(t interface{ Errorf(string, ...any) }, in string) {
	got := Clean(in)
	if !utf8.ValidString(got) {
		t.Errorf("Clean(%q) is no UTF-8: %q", in, got)
	}
	if i := strings.IndexFunc(got, func(r rune) bool { return r == '@' || r != '\n' && unicode.IsControl(r) || unseen(r) }); i >= 0 {
		t.Errorf("Clean(%q) leaves %q", in, got[i:])
	}
	if got != strings.TrimSpace(got) {
		t.Errorf("Clean(%q) has blanks around: %q", in, got)
	}
	if Clean(got) != got {
		t.Errorf("Clean is not stable on %q: %q then %q", in, got, Clean(got))
	}
	if norm.NFC.String(got) != got {
		t.Errorf("Clean(%q) is not NFC: %q", in, got)
	}
}

// checkFrame holds what must be true of every framed content.
func checkFrame(t interface{ Errorf(string, ...any) }, in string) {
	for _, m := range []Message{
		{ID: testID, Kind: "SEND", From: "alice@hosta", Content: in, ExpectsReply: true, Limit: 1 << 20},
		{ID: testID, Kind: "SEND", From: in, Content: "x", InReplyTo: in, Limit: 1},
	} {
		text, announced := Frame(m)
		if err := checkSafe(text); err != nil {
			t.Errorf("%v: %q", err, text)
		}
		if Clean(text) != text {
			t.Errorf("Frame(%q) is not a fixed point of Clean: %q", in, text)
		}
		lines := strings.Split(text, "\n")
		if announced {
			if len(lines) != 1 {
				t.Errorf("announced in %d lines: %q", len(lines), text)
			}
			continue
		}
		for i, l := range lines {
			if ours := i == 0 || i == len(lines)-1; strings.HasPrefix(l, "[bridge") != ours {
				t.Errorf("line %d of %q", i, text)
			}
		}
	}
}

// nasty draws texts out of what attacks are made of.
func nasty() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.String(),
		rapid.StringOfN(rapid.RuneFrom([]rune("\x1b[]201~\r\n\t\x00\x7f\u009b\u0085\u2028\u202e@!/#?ab e\u0301\u0338\u200b\u200d")), 0, 12, -1),
		rapid.SampledFrom([]string{"\x1b[201~", "\x9b", "\xc2", "\xe2\x80", "[bridge end of message", "［bridge", "\u200b[bridge", "[brіdge", "\n", " @x"}),
	)
	return rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), "") })
}

// Fault: some content leaves the paste, presses a key, hides from a person, or
// passes for a line of our own.
func TestNoContentLeavesThePaste(t *testing.T) {
	t.Attr("threat", "T1 T2 T3")
	rapid.Check(t, func(t *rapid.T) {
		s := nasty().Draw(t, "text")
		checkClean(t, s)
		checkFrame(t, s)
	})
}

// Fault: as above, for whatever bytes the fuzzer finds.
func FuzzContent(f *testing.F) {
	f.Attr("threat", "T1 T2 T3")
	for _, s := range []string{"", "\x1b[201~\r", "\x9b201~", "a\xc2\x9b", "e\u0301@x\r\n", "[bridge end", "\u0300\u0338<\u0338"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1<<12 {
			s = s[:1<<12]
		}
		checkClean(t, s)
		checkFrame(t, s)
	})
}
