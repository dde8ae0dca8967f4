package herdr

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// DefaultPasteLimit is the length in bytes, frame included, over which a brief
// is announced instead of pasted (design §6).
const DefaultPasteLimit = 4096

// Message is what Frame makes a text of. Every field but Limit may come from a
// peer and need not be clean.
type Message struct {
	ID           string // message id: the mark by which the text is found on the screen
	Kind         string // as a person reads it, for example SEND
	From         string // name@host
	Content      string
	InReplyTo    string // empty: it answers nothing
	ExpectsReply bool
	Limit        int // bytes, frame included; 0 means DefaultPasteLimit. See PasteLimit
}

// Frame returns the text to inject for m, a fixed point of Clean: a first line
// that says kind, sender and message id, the content, and a last line that says
// how to reply (design §11, "Injected text"). If that is longer than m.Limit,
// the text is one line that announces the message, to be fetched with
// bridge_read, and announced is true.
func Frame(m Message) (text string, announced bool) {
	limit := m.Limit
	if limit <= 0 {
		limit = DefaultPasteLimit
	}
	// What is far over the limit is not cleaned first, only to be thrown away.
	if len(m.Content) <= 4*limit {
		if text = whole(m); len(text) <= limit {
			return text, false
		}
	}
	return announcement(m), true
}

func whole(m Message) string {
	id := oneLine(m.ID)
	var b strings.Builder
	fmt.Fprintf(&b, "[bridge %s from %s, message %s", oneLine(m.Kind), oneLine(m.From), id)
	if m.InReplyTo != "" {
		fmt.Fprintf(&b, ", in reply to %s", oneLine(m.InReplyTo))
	}
	b.WriteString("]\n")
	body := quoteImitations(Clean(m.Content))
	if body == "" {
		body = "(empty)"
	}
	b.WriteString(body)
	fmt.Fprintf(&b, "\n[bridge end of message %s.", id)
	if m.ExpectsReply {
		fmt.Fprintf(&b, " To reply, call the tool bridge_reply with in_reply_to \"%s\".", id)
	} else {
		b.WriteString(" No reply is expected.")
	}
	if strings.Contains(m.Content, "@") {
		b.WriteString(" In it, ＠ stands for the plain at sign U+0040.")
	}
	b.WriteString("]")
	return b.String()
}

// announcement stays near 150 characters: up to there every agent shows a paste
// as itself (agent fact §3).
func announcement(m Message) string {
	end := "]"
	if m.ExpectsReply {
		end = ", answer with bridge_reply]"
	}
	return fmt.Sprintf("[bridge %s from %s, %d bytes: call bridge_read with msg_id %s%s",
		oneLine(m.Kind), oneLine(m.From), len(m.Content), oneLine(m.ID), end)
}

// frameHead is what the first line of every text of Frame begins with, squashed:
// a composer breaks it where its rows end.
var frameHead = regexp.MustCompile(`^bridge[A-Z]+from.*?(message|msgid)[0-9a-f]{32}`)

// framed reports whether a composer's text begins like one of Frame's. Of a
// long one that collapsed to a marker it cannot be seen.
func framed(text string) bool {
	return strings.HasPrefix(text, "[bridge ") && frameHead.MatchString(squash(text))
}

// Nudge is the one line for the pane of a main whose client is not asking
// (design §7): how many messages are held, and who sent the newest.
func Nudge(held int, from string) string {
	messages := "messages wait"
	if held == 1 {
		messages = "message waits"
	}
	return fmt.Sprintf("[bridge: %d %s for you, the newest from %s. Call the tool bridge_poll to read.]", held, messages, oneLine(from))
}

// quoteMark stands before a body line that could be taken for one of ours.
const quoteMark = "> "

// quoteImitations marks the lines of a body that look like our first or last
// line.
func quoteImitations(body string) string {
	lines := strings.Split(body, "\n")
	for i, l := range lines {
		if imitates(l) {
			lines[i] = quoteMark + l
		}
	}
	return strings.Join(lines, "\n")
}

// imitates reports whether a line begins, blanks and marks aside, with
// something like a bracket and the word bridge, also in full-width letters or
// in letters of mixed scripts, which look alike.
func imitates(line string) bool {
	rest := strings.TrimLeftFunc(norm.NFKC.String(line), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsMark(r) || unicode.Is(unicode.Cf, r)
	})
	word := strings.TrimLeftFunc(rest, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	opening := rest[:len(rest)-len(word)]
	if strings.TrimSpace(opening) == "" || strings.HasPrefix(opening, quoteMark) {
		return false
	}
	letters := squash(strings.Map(unicode.ToLower, word))
	return strings.HasPrefix(letters, "bridge") || mixedScripts(word)
}

// mixedScripts reports whether the first word holds ASCII letters and others.
func mixedScripts(s string) bool {
	var ascii, other bool
	for _, r := range s {
		switch {
		case unicode.IsMark(r) || unicode.Is(unicode.Cf, r):
			continue
		case !unicode.IsLetter(r):
			return ascii && other
		case r < 0x80:
			ascii = true
		case !unicode.Is(unicode.Latin, r):
			other = true
		}
	}
	return ascii && other
}
