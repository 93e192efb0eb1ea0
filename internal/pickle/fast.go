//go:build !plainpickle

package pickle

// fast switches the ways of repeat.go and memo.go on. With the build tag
// plainpickle everything goes the plain way, which must give the same events,
// errors and values: the tests of this package and of the readers run with it,
// too.
const fast = true
