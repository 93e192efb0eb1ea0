// Package words puts the answers of planner in words: what is said first, and
// the rows of the tables below it. The commands and the report both speak
// through it, so that they cannot say two things of one answer. How a line is
// wrapped, and how a table is drawn, is theirs.
//
// JSON needs no words: planner.Tuning and planner.Planning are encoded as they
// are.
package words

import (
	"fmt"

	"allocsim/internal/bytesize"
	"allocsim/internal/text"
)

// Cell is one field of a table.
type Cell struct {
	Text string
	// Value is the plain number behind Text, by which a table sorts: bytes,
	// µs, a count. Empty where there is none.
	Value string
}

// Text is a cell without a number.
func Text(s string) Cell { return Cell{Text: s} }

// Size is a cell of n bytes.
func Size(n int64) Cell { return Cell{bytesize.Format(n), fmt.Sprint(n)} }

// Count is a cell of a number.
func Count(n int64) Cell { return Cell{text.Count(n), fmt.Sprint(n)} }

// Duration is a cell of a time in µs.
func Duration(us float64) Cell { return Cell{text.Duration(us), fmt.Sprintf("%.0f", us)} }

// OrDefault names a configuration: the empty one is PyTorch's default.
func OrDefault(conf string) string {
	if conf == "" {
		return "(default)"
	}
	return conf
}
