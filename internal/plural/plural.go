// Package plural writes counts with their nouns.
package plural

import "strconv"

// Of writes n with a noun that forms its plural with s: "1 block", "3 blocks".
func Of[T ~int | ~int64](n T, noun string) string {
	s := strconv.FormatInt(int64(n), 10) + " " + noun
	if n != 1 {
		s += "s"
	}
	return s
}

// Are is "is" for 1 and "are" otherwise.
func Are[T ~int | ~int64](n T) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
