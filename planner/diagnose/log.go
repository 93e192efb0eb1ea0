package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// LogReport is the explanation of a log: the report of the message that ended
// the program, and one line for each message found.
type LogReport struct {
	Report
	Messages []MessageReport `json:"messages"`
	// Dropped is how many messages are not listed because there are too many.
	Dropped int `json:"dropped,omitempty"`
}

// MessageReport is what is said of each message of a log.
type MessageReport struct {
	Rank *int `json:"rank"`
	GPU  *int `json:"gpu"`
	// Time is the log's own time for the message, as written there.
	Time    string  `json:"time,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Handled is set when the text says that the program went on.
	Handled bool `json:"handled"`
	// Repeats is how often the same message came again.
	Repeats   int       `json:"repeats"`
	Framework Framework `json:"framework"`
	Numbers   Numbers   `json:"numbers"`
	// Offset is where the message begins in the text, in bytes.
	Offset int64 `json:"offset"`
	// Explained marks the message that the report is about.
	Explained bool `json:"explained"`
	// Report explains this message alone.
	Report Report `json:"-"`
}

// DiagnoseLog explains every message of a log, and the one that ended the
// program as the answer.
func DiagnoseLog(l Log, o Options) LogReport {
	r := LogReport{Dropped: l.Dropped, Messages: make([]MessageReport, 0, len(l.Messages))}
	for i, m := range l.Messages {
		one := Diagnose(m, o)
		r.Messages = append(r.Messages, MessageReport{
			Rank: one.Rank, GPU: one.GPU, Time: m.Time, Verdict: one.Verdict, Handled: m.Handled, Repeats: m.Repeats,
			Framework: m.Framework, Numbers: one.Numbers, Offset: m.Offset, Explained: i == l.Fatal, Report: one,
		})
		if i == l.Fatal {
			r.Report = one
		}
	}
	if n := len(l.Messages); n > 1 {
		what := "the one that ended the program, as far as the text tells"
		if l.Messages[l.Fatal].Handled {
			what = "the last one, although the program seems to have gone on after it"
		}
		r.Notes = append(r.Notes, fmt.Sprintf("the text holds %d different out-of-memory messages; this is about %s", n+l.Dropped, what))
	}
	return r
}

// OfRank is the log of one rank's messages. The error says which ranks there
// are.
func (l Log) OfRank(rank int) (Log, error) {
	var of Log
	seen := map[int]bool{}
	for _, m := range l.Messages {
		if m.Rank == rank {
			of.Messages = append(of.Messages, m)
		}
		seen[m.Rank] = true
	}
	if len(of.Messages) == 0 {
		delete(seen, -1)
		if len(seen) == 0 {
			return of, fmt.Errorf("no message says which rank it is from")
		}
		return of, fmt.Errorf("no out-of-memory message of rank %d; there are messages of rank %s", rank, ranks(seen))
	}
	of.Fatal = fatal(of.Messages)
	return of, nil
}

// ranks lists numbers in order, runs of them as "0-7".
func ranks(seen map[int]bool) string {
	list := slices.Sorted(maps.Keys(seen))
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, list[i])
		if j > i {
			fmt.Fprintf(&b, "-%d", list[j])
		}
		i = j + 1
	}
	return b.String()
}
