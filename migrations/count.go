package migrations

import "unicode/utf8"

// Count says what became of the messages of one queue in one run, each counted
// where it happened: found + arrived = moved + copies + unsettled + left + vanished.
type Count struct {
	Queue     string `json:"queue"`
	Found     int    `json:"found"`     // lay there when its turn came
	Arrived   int    `json:"arrived"`   // came meanwhile
	Moved     int    `json:"moved"`     // in the main's inbox and out of the queue
	Copies    int    `json:"copies"`    // same id and content as one before: the main gets that one
	Unsettled int    `json:"unsettled"` // in the main's inbox; whether out of the queue, the next run sees
	Left      int    `json:"left"`      // still in the queue
	Vanished  int    `json:"vanished"`  // expired, taken by somebody else, or gone with the queue
	Parts     int    `json:"parts"`     // further letters, of messages too large for one
	Escaped   int    `json:"escaped"`   // of those moved: bytes that are no UTF-8 were written as \xNN
	// Doubtful are those of moved that an earlier run, told otherwise or long
	// ago, may have sent too: they may be there twice, or with another main.
	Doubtful int    `json:"doubtful"`
	Deleted  bool   `json:"deleted"`
	Problem  string `json:"problem,omitempty"`
}

// reckon counts what a survey found beside what was known.
func (r *run) reckon(found []place) {
	gone := map[string]bool{}
	for _, p := range r.line {
		gone[p.key] = p.mark == nil
	}
	left, arrived := 0, 0
	for _, p := range found {
		if p.mark != nil {
			continue
		}
		left++
		if !gone[p.key] {
			arrived++
		}
		gone[p.key] = false
	}
	for _, mail := range gone {
		if mail {
			r.count.Vanished++
		}
	}
	if r.looks == 1 {
		r.count.Found = arrived
	} else {
		r.count.Arrived += arrived
	}
	r.count.Left, r.line = left, found
}

// tally counts what is in the inbox and out of the queue.
func (r *run) tally(all []sending, batch []Old) {
	for i, s := range all {
		r.count.Left--
		if s.Copy {
			r.count.Copies++
			continue
		}
		r.count.Moved++
		r.count.Parts += len(letters(s.head, batch[i])) - 1
		if !utf8.Valid(batch[i].Body) {
			r.count.Escaped++
		}
		if s.doubtful {
			r.count.Doubtful++
		}
	}
}
