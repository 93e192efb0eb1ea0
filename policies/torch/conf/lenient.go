//lint:file-ignore ST1005 these errors are PyTorch's own words

package conf

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

// ParseLenient reads s as PyTorch release v itself does: separators are hardly
// checked since 2.10, what follows the digits of a number is ignored, the last
// of several equal keys wins. Use it to replay what a program really ran with;
// use [Parse] to tell a user whether the string is right.
//
// The error is what PyTorch raises, and the Config then Default(v). (PyTorch
// itself stays with the options before the fault applied.)
func ParseLenient(s string, v Version) (Config, error) {
	v = v.orLatest()
	c, err := parseLenient(s, v)
	if err != nil {
		return Default(v), err
	}
	return c, nil
}

func parseLenient(s string, v Version) (Config, error) {
	l := lenient{tokens: tokenize(s, v), v: v, c: Default(v)}
	// Since 2.11 the segment size is looked for first, because the bounds of
	// other options depend on it.
	if v.AtLeast(2, 11) {
		for i, t := range l.tokens {
			if t == "large_segment_size_mb" {
				n, err := l.size(i + 2)
				if err != nil {
					return l.c, err
				}
				if n <= 10 {
					return l.c, errors.New("CachingAllocator option large_segment_size_mb must be > 10 MB")
				}
				l.c.LargeSegmentSize = mebibytes(n)
			}
		}
		l.c.MaxNonSplitRounding = l.c.LargeSegmentSize
	}
	for i := 0; i < len(l.tokens); i++ {
		var err error
		if i, err = l.pair(i); err != nil {
			return l.c, err
		}
		if i+1 < len(l.tokens) {
			i++
			if !v.sharedParser() && l.tokens[i] != "," {
				return l.c, errors.New("Error parsing CachingAllocator settings, expected ,")
			}
		}
	}
	return l.c, nil
}

type lenient struct {
	tokens []string
	v      Version
	c      Config
}

// tokenize splits at separators and drops white space: all of it since the
// shared parser, before only the space character.
func tokenize(s string, v Version) []string {
	var tokens []string
	var word []byte
	flush := func() {
		if len(word) > 0 {
			tokens = append(tokens, string(word))
			word = word[:0]
		}
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == ',' || c == ':' || c == '[' || c == ']':
			flush()
			tokens = append(tokens, s[i:i+1])
		case c == ' ' || v.sharedParser() && c >= '\t' && c <= '\r':
		default:
			word = append(word, c)
		}
	}
	flush()
	return tokens
}

var errPastEnd = errors.New("Index out of bounds in ConfigTokenizer")

// at is token i.
func (l *lenient) at(i int) (string, error) {
	if i >= len(l.tokens) {
		if l.v.sharedParser() {
			return "", errPastEnd
		}
		return "", errors.New("Error parsing CachingAllocator settings, value missing")
	}
	return l.tokens[i], nil
}

// colon checks token i as the release does: not at all but for its existence
// since the shared parser.
func (l *lenient) colon(i int) error {
	t, err := l.at(i)
	if err == nil && t != ":" && !l.v.sharedParser() {
		err = errors.New("Error parsing CachingAllocator settings, expected :")
	}
	return err
}

// pair applies the key at token i and returns the index of its last token.
func (l *lenient) pair(i int) (int, error) {
	name := l.tokens[i]
	k := lookup(name)
	if k == nil || !k.knownTo(l.v) {
		return i, errors.New(unrecognized(name, l.v))
	}
	if err := l.colon(i + 1); err != nil {
		return i, err
	}
	i += 2
	value, err := l.at(i)
	if err != nil {
		return i, err
	}
	if k.Type == Divisions {
		return l.divisions(i)
	}
	switch k.Type {
	case Bool:
		if value != "True" && value != "False" {
			if l.v.sharedParser() {
				return i, fmt.Errorf("Expected 'True' or 'False' at index %d in ConfigTokenizer but got '%s'", i, value)
			}
			return i, fmt.Errorf("Expected a single True/False argument for %s", name)
		}
		k.setBool(&l.c, value == "True")
	case Choice:
		if value != string(Native) && value != string(CudaMallocAsync) {
			return i, errors.New("Unknown allocator backend, options are native and cudaMallocAsync")
		}
		l.c.Backend = Backend(value)
	case Fraction:
		x, err := stod(value)
		if err != nil {
			return i, err
		}
		if msg := k.badFraction(x); msg != "" {
			return i, errors.New(msg)
		}
		k.setFloat(&l.c, x)
	case MiB, Count:
		n, err := l.size(i)
		if err != nil {
			return i, err
		}
		if msg := k.badSize(n, &l.c, l.v); msg != "" {
			return i, errors.New(msg)
		}
		if k.Type == MiB {
			k.setInt(&l.c, mebibytes(n))
		} else {
			k.setInt(&l.c, int64(n))
		}
	}
	return i, nil
}

// unrecognized is PyTorch's message about a key it does not know.
func unrecognized(name string, v Version) string {
	switch {
	case v.AtLeast(2, 11):
		return "Unrecognized key '" + name + "' in Accelerator allocator config."
	case v.sharedParser():
		return "Unrecognized key '" + name + "' in CUDA allocator config."
	}
	return "Unrecognized CachingAllocator option: " + name
}

// divisions reads the value of roundup_power2_divisions at token i.
func (l *lenient) divisions(i int) (int, error) {
	table := &l.c.Roundup
	if l.tokens[i] != "[" || !l.v.AtLeast(2, 0) {
		d, err := l.size(i)
		if err != nil {
			return i, err
		}
		if bits.OnesCount64(d) != 1 {
			return i, errors.New("For roundups, the divisions has to be power of 2 ")
		}
		for j := range table {
			table[j] = saturate(d)
		}
		return i, nil
	}
	last, first := 0, true
	for i++; i < len(l.tokens) && l.tokens[i] != "]"; i++ {
		bound := l.tokens[i]
		if err := l.colon(i + 1); err != nil {
			return i, err
		}
		i += 2
		d, err := l.size(i)
		if err != nil {
			return i, err
		}
		if bits.OnesCount64(d) > 1 {
			return i, errors.New("For roundups, the divisions has to be power of 2 or 0 to disable roundup ")
		}
		if bound == ">" {
			from := last
			if l.v.fillsAfterLast() {
				from++
			}
			for j := from; j < Intervals; j++ {
				table[j] = saturate(d)
			}
		} else {
			b, err := stoull(bound)
			if err != nil {
				return i, err
			}
			if bits.OnesCount64(b) != 1 {
				return i, errors.New("For roundups, the intervals have to be power of 2 ")
			}
			last = min(bits.TrailingZeros64(b), Intervals-1)
			if first {
				for j := range last {
					table[j] = saturate(d)
				}
				first = false
			}
			table[last] = saturate(d)
		}
		next, err := l.at(i + 1)
		if err != nil {
			return i, err
		}
		if next != "]" {
			i++
			if !l.v.sharedParser() && next != "," {
				return i, errors.New("Error parsing CachingAllocator settings, expected ,")
			}
		}
	}
	return i, nil
}

// size is token i as a whole number: stoull since the shared parser, stoi
// before. A negative number wraps to a huge one in both.
func (l *lenient) size(i int) (uint64, error) {
	t, err := l.at(i)
	if err != nil {
		return 0, err
	}
	if l.v.sharedParser() {
		return stoull(t)
	}
	return stoi(t)
}

var leadingInt = regexp.MustCompile(`^([+-]?)([0-9]+)`)

// stoull is C++'s std::stoull.
func stoull(s string) (uint64, error) {
	m := leadingInt.FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("stoull")
	}
	n, err := strconv.ParseUint(m[2], 10, 64)
	if err != nil {
		return 0, errors.New("stoull")
	}
	if m[1] == "-" {
		n = -n
	}
	return n, nil
}

// stoi is C++'s std::stoi, converted to size_t.
func stoi(s string) (uint64, error) {
	m := leadingInt.FindString(s)
	n, err := strconv.ParseInt(m, 10, 32)
	if err != nil {
		return 0, errors.New("stoi")
	}
	return uint64(n), nil
}

var leadingFloat = regexp.MustCompile(`^(?i)[+-]?(?:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)`)

// minNormal is the smallest double that is not denormal. glibc's strtod
// reports smaller ones as a range error, which makes std::stod throw.
const minNormal = 0x1p-1022

// stod is C++'s std::stod.
func stod(s string) (float64, error) {
	m := leadingFloat.FindString(s)
	if m == "" {
		return 0, errors.New("stod")
	}
	lower := strings.ToLower(m)
	hex := strings.Contains(lower, "0x")
	if hex && !strings.Contains(lower, "p") {
		lower += "p0"
	}
	x, err := strconv.ParseFloat(lower, 64)
	digits := lower
	if i := strings.IndexAny(lower, "ep"); i >= 0 && (!hex || lower[i] == 'p') {
		digits = lower[:i]
	}
	underflow := math.Abs(x) < minNormal && strings.ContainsAny(strings.TrimPrefix(strings.TrimLeft(digits, "+-"), "0x"), "123456789abcdf")
	if err != nil || underflow && !strings.Contains(lower, "n") {
		return 0, errors.New("stod")
	}
	return x, nil
}

// mebibytes is n MiB in bytes; what exceeds an int64 is as good as unlimited.
func mebibytes(n uint64) int64 {
	if n > math.MaxInt64/mib {
		return Unlimited
	}
	return int64(n) * mib
}

// saturate bounds a number of divisions by one that no request can meet, so
// that 512 × divisions does not overflow.
func saturate(d uint64) int64 { return int64(min(d, 1<<52)) }
