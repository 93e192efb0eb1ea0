package diagnose

import (
	"math"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
)

// Quantity is a number of bytes as a message prints it, or an interval that
// follows from such numbers.
type Quantity struct {
	Bytes int64
	// Rounding is the most that the true number differs: half a unit of the
	// last digit printed, 0 where the number is exact.
	Rounding int64
	// Known is unset when the message does not have the number.
	Known bool
}

// Exact is a Quantity without rounding.
func Exact(bytes int64) Quantity { return Quantity{Bytes: bytes, Known: true} }

// between is the interval [low, high].
func between(low, high int64) Quantity {
	half := (high - low + 1) / 2
	return Quantity{Bytes: low + half, Rounding: half, Known: true}
}

// Low and High bound the true number.
func (q Quantity) Low() int64 { return q.Bytes - q.Rounding }

// High is the largest the number can be.
func (q Quantity) High() int64 { return q.Bytes + q.Rounding }

// plus and minus are unknown if an operand is. They do not wrap around: a
// message may print any number.
func (q Quantity) plus(r Quantity) Quantity {
	return Quantity{add(q.Bytes, r.Bytes), add(q.Rounding, r.Rounding), q.Known && r.Known}
}

func (q Quantity) minus(r Quantity) Quantity {
	return Quantity{add(q.Bytes, -r.Bytes), add(q.Rounding, r.Rounding), q.Known && r.Known}
}

// huge bounds every number of bytes, so that sums of a few cannot overflow.
const huge = 1 << 60

func add(a, b int64) int64 { return min(max(a+b, -huge), huge) }

// atLeast0 cuts off what cannot be: a part of the card is never negative.
func (q Quantity) atLeast0() Quantity {
	if !q.Known || q.Low() >= 0 {
		return q
	}
	return between(0, max(0, q.High()))
}

// surelyAtMost and surelyMore compare so that no rounding can change the
// answer. Both are false for unknown operands and in between.
func (q Quantity) surelyAtMost(r Quantity) bool { return q.Known && r.Known && q.High() <= r.Low() }
func (q Quantity) surelyMore(r Quantity) bool   { return q.Known && r.Known && q.Low() > r.High() }

// size matches a number with a unit. [G]iB, [G]B and [G] are the same here,
// because every framework but the kernel's own log counts in powers of 1024.
const size = `([0-9][0-9,]*(?: ?\.[0-9]+)?) ?(bytes?\b|[KkMGT]i?B\b|[KMGT]\b|B\b)`

var unitBytes = map[byte]float64{'K': bytesize.KiB, 'k': bytesize.KiB, 'M': bytesize.MiB, 'G': bytesize.GiB, 'T': bytesize.TiB}

// parseSize reads a matched number and unit. Commas group thousands; a comma
// before the last one or two digits is a decimal comma, and so is one before
// three if the number is followed by a scaled unit and begins with a zero.
func parseSize(number, unit string) Quantity {
	number = strings.ReplaceAll(number, " ", "")
	if i := strings.LastIndexByte(number, ','); i >= 0 && !strings.Contains(number, ".") && (len(number)-i-1 <= 2 || strings.HasPrefix(number, "0,")) {
		number = number[:i] + "." + number[i+1:]
	}
	number = strings.ReplaceAll(number, ",", "")
	x, err := strconv.ParseFloat(number, 64)
	factor, scaled := unitBytes[unit[0]]
	if !scaled {
		factor = 1
	}
	x *= factor
	if err != nil || x < 0 {
		return Quantity{}
	}
	if x >= huge {
		return Exact(huge)
	}
	q := Quantity{Bytes: int64(math.Round(x)), Known: true}
	if scaled {
		decimals := 0
		if i := strings.IndexByte(number, '.'); i >= 0 {
			decimals = len(number) - i - 1
		}
		q.Rounding = int64(math.Ceil(factor / 2 / math.Pow10(min(decimals, 18))))
	}
	return q
}

// whole reads a number of bytes without a unit.
func whole(s string) Quantity {
	n, err := strconv.ParseInt(strings.ReplaceAll(s, ",", ""), 10, 64)
	if err != nil || n < 0 {
		return Quantity{}
	}
	return Exact(min(n, huge))
}
