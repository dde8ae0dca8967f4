package herdr

import (
	"regexp"
	"slices"
	"strings"
)

// Composer is where an agent's input line stands on the screen.
type Composer struct {
	Top, Bottom int    // its rows are rows[Top:Bottom]
	Text        string // what is in it, prompt sign and indentation removed
	Foreign     bool   // it is in another mode, a shell's for example
}

const nbsp = "\u00a0"

var (
	claudeRule    = regexp.MustCompile(`^─{4,}.*─$`)
	codexFooter   = regexp.MustCompile(`^\s+\S.* · [~/]`)
	opencodeFloor = regexp.MustCompile(`^\s*╹▀{3,}`)
)

// claudeComposer: the rows between the last two full-width rules, beginning
// with ❯ and U+00A0 directly under the upper one (agent fact §2). The rows of
// the transcript and of dialogs have a plain blank after the ❯. A bare ❯ is
// the empty composer whose U+00A0 was trimmed as a trailing blank.
func claudeComposer(rows []string) (Composer, bool) {
	bottom := lastMatch(rows, claudeRule)
	if bottom < 0 {
		return Composer{}, false
	}
	top := lastMatch(rows[:bottom], claudeRule)
	if top < 0 || bottom-top < 2 {
		return Composer{}, false
	}
	c := Composer{Top: top + 1, Bottom: bottom}
	first := rows[top+1]
	switch {
	case first == "❯":
		first = ""
	case strings.HasPrefix(first, "❯"+nbsp):
		first = strings.TrimPrefix(first, "❯"+nbsp)
	case strings.HasPrefix(first, "!"+nbsp), first == "!":
		c.Foreign, first = true, strings.TrimPrefix(first, "!")
	default:
		return Composer{}, false
	}
	c.Text = join(first, rows[top+2:bottom])
	return c, true
}

// codexComposer: the last row that begins with ›, over the footer that names
// model and directory (agent fact §2). A row of the transcript begins alike but
// has answers (•) below it; a dialog has no footer.
func codexComposer(rows []string) (Composer, bool) {
	top := -1
	for i, r := range slices.Backward(rows) {
		if r == "›" || strings.HasPrefix(r, "› ") {
			top = i
			break
		}
	}
	if top < 0 {
		return Composer{}, false
	}
	footer := lastMatch(rows[top+1:], codexFooter)
	if footer < 0 {
		return Composer{}, false
	}
	footer += top + 1
	for _, r := range rows[top+1 : footer] {
		if r != "" && !strings.HasPrefix(r, " ") {
			return Composer{}, false
		}
	}
	return Composer{Top: top, Bottom: footer, Text: join(strings.TrimPrefix(rows[top], "›"), rows[top+1:footer])}, true
}

// opencodeComposer: the box of rows that begin with ┃ over the last ╹▀▀▀; its
// last row names mode and model (agent fact §2).
func opencodeComposer(rows []string) (Composer, bool) {
	floor := lastMatch(rows, opencodeFloor)
	if floor < 0 {
		return Composer{}, false
	}
	top := floor
	for top > 0 && strings.HasPrefix(strings.TrimLeft(rows[top-1], " "), "┃") {
		top--
	}
	var body []string
	for _, r := range rows[top:floor] {
		body = append(body, strings.TrimPrefix(strings.TrimLeft(r, " "), "┃"))
	}
	for len(body) > 0 && strings.TrimSpace(body[len(body)-1]) == "" {
		body = body[:len(body)-1]
	}
	if len(body) == 0 || !strings.Contains(body[len(body)-1], " · ") {
		return Composer{}, false
	}
	return Composer{Top: top, Bottom: floor, Text: join("", body[:len(body)-1])}, true
}

// join returns the text of a composer; blanks around it are layout.
func join(first string, more []string) string {
	all := []string{strings.TrimSpace(first)}
	for _, m := range more {
		all = append(all, strings.TrimSpace(m))
	}
	return strings.TrimSpace(strings.Join(all, "\n"))
}

func lastMatch(rows []string, re *regexp.Regexp) int {
	for i, r := range slices.Backward(rows) {
		if re.MatchString(r) {
			return i
		}
	}
	return -1
}

func anyMatch(rows []string, re *regexp.Regexp) bool { return lastMatch(rows, re) >= 0 }

// screenRows splits what a read returned, without trailing empty rows.
func screenRows(text string) []string {
	rows := strings.Split(text, "\n")
	for i, r := range rows {
		rows[i] = strings.TrimRight(r, " \r")
	}
	for len(rows) > 0 && rows[len(rows)-1] == "" {
		rows = rows[:len(rows)-1]
	}
	return rows
}

// tail returns the last n rows.
func tail(rows []string, n int) []string { return rows[max(0, len(rows)-n):] }
