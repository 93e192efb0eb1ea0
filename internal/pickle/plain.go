//go:build plainpickle

package pickle

// fast is off: every dict goes through the stack, and no page of the memo is
// packed. See fast.go.
const fast = false
