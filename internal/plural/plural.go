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

// Count writes n with one for 1 and many otherwise: "1 entry", "7 entries".
func Count[T ~int | ~int64](n T, one, many string) string {
	return strconv.FormatInt(int64(n), 10) + " " + Noun(n, one, many)
}

// Noun is one for 1 and many otherwise, for nouns that do not just take an s
// and counts that are written in another way.
func Noun[T ~int | ~int64](n T, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Are is "is" for 1 and "are" otherwise.
func Are[T ~int | ~int64](n T) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
