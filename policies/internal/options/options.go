// Package options reads the "key=value,key=value" options of a policy into
// typed variables and writes them back in normal form.
package options

import (
	"fmt"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/policies"
)

// Set is the options of one policy while they are read. Each method reads one
// option into *v, which holds the default; the first error is kept for Err.
// Options that equal the default are left out of the normal form.
type Set struct {
	values map[string]string
	known  []string
	normal []string
	err    error
}

// Parse splits text; known are the option names the policy takes.
func Parse(text string, known ...string) *Set {
	values, err := policies.Options(text, known...)
	return &Set{values: values, known: known, err: err}
}

func (s *Set) get(key string) (string, bool) {
	if s.err != nil {
		return "", false
	}
	v, ok := s.values[key]
	return v, ok
}

func (s *Set) fail(key, value, takes string) {
	s.err = fmt.Errorf("option %s=%s: %s takes %s", key, value, key, takes)
}

// Text returns the text of an option that the caller reads itself.
func (s *Set) Text(key string) (string, bool) { return s.get(key) }

// Keep adds an option that the caller has read to the normal form.
func (s *Set) Keep(key, value string) { s.keep(key, value) }

func (s *Set) keep(key, value string) { s.normal = append(s.normal, key+"="+value) }

// Given reports whether the option was written.
func (s *Set) Given(key string) bool {
	_, ok := s.values[key]
	return ok
}

// Size reads a size in bytes of at least min.
func (s *Set) Size(key string, v *int64, min int64) {
	text, ok := s.get(key)
	if !ok {
		return
	}
	n, err := bytesize.Parse(text)
	if err != nil {
		s.err = fmt.Errorf("option %s: %w", key, err)
		return
	}
	if n < min || n > 1<<50 {
		s.fail(key, text, fmt.Sprintf("a size from %s to 1024 TiB", Size(min)))
		return
	}
	if n != *v {
		*v = n
		s.keep(key, Size(n))
	}
}

// SizeOrWord reads a size in bytes or a word that stands for one.
func (s *Set) SizeOrWord(key string, v *int64, word string, means int64) {
	if text, ok := s.get(key); ok && text == word {
		if *v != means {
			*v = means
			s.keep(key, word)
		}
		return
	}
	s.Size(key, v, 0)
}

// SizeOrPercent reads a size in bytes into *v or, with a percent sign, a
// fraction from 0 to 1 into *fraction.
func (s *Set) SizeOrPercent(key string, v *int64, fraction *float64) {
	text, ok := s.get(key)
	if !ok {
		return
	}
	number, isPercent := strings.CutSuffix(strings.TrimSpace(text), "%")
	if !isPercent {
		s.Size(key, v, 0)
		return
	}
	p, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(p >= 0 && p <= 100) {
		s.fail(key, text, "a size such as 4GiB or a share such as 50%")
		return
	}
	if f := p / 100; f != *fraction {
		*fraction = f
		s.keep(key, strconv.FormatFloat(p, 'g', -1, 64)+"%")
	}
}

// Fraction reads a number from 0 to 1.
func (s *Set) Fraction(key string, v *float64) {
	text, ok := s.get(key)
	if !ok {
		return
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		s.fail(key, text, "a number from 0 to 1")
		return
	}
	if f != *v {
		*v = f
		s.keep(key, strconv.FormatFloat(f, 'g', -1, 64))
	}
}

// Int reads a whole number from min to max.
func (s *Set) Int(key string, v *int64, min, max int64) {
	text, ok := s.get(key)
	if !ok {
		return
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < min || n > max {
		s.fail(key, text, fmt.Sprintf("a whole number from %d to %d", min, max))
		return
	}
	if n != *v {
		*v = n
		s.keep(key, text)
	}
}

// Bool reads true or false.
func (s *Set) Bool(key string, v *bool) {
	text, ok := s.get(key)
	if !ok {
		return
	}
	var b bool
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		b = true
	case "false", "0", "no", "off":
	default:
		s.fail(key, text, "true or false")
		return
	}
	if b != *v {
		*v = b
		s.keep(key, strconv.FormatBool(b))
	}
}

// Choice reads one of the given words.
func (s *Set) Choice(key string, v *string, words ...string) {
	text, ok := s.get(key)
	if !ok {
		return
	}
	for _, w := range words {
		if text == w {
			if w != *v {
				*v = w
				s.keep(key, w)
			}
			return
		}
	}
	s.fail(key, text, strings.Join(words, " or "))
}

// Fail records an error of the caller's own checks.
func (s *Set) Fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// Err is the first error.
func (s *Set) Err() error { return s.err }

// Normal is the options in normal form, in the order in which they were read
// into variables.
func (s *Set) Normal() string { return strings.Join(s.normal, ",") }

// Size writes n so that it reads back exactly: in the largest binary unit that
// divides it, up to GiB.
func Size(n int64) string {
	switch {
	case n == 0:
		return "0"
	case n%bytesize.GiB == 0:
		return fmt.Sprintf("%dGiB", n/bytesize.GiB)
	case n%bytesize.MiB == 0:
		return fmt.Sprintf("%dMiB", n/bytesize.MiB)
	case n%bytesize.KiB == 0:
		return fmt.Sprintf("%dKiB", n/bytesize.KiB)
	}
	return strconv.FormatInt(n, 10)
}
