// Package formatstest opens recordings for tests.
package formatstest

import (
	"context"
	"testing"

	"allocsim/traces"
	"allocsim/traces/formats"
)

// Load reads a recording with its sidecar, the busiest device of several.
func Load(t testing.TB, path string) *traces.Trace {
	t.Helper()
	rec, err := formats.Open(context.Background(), path, formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := rec.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}
