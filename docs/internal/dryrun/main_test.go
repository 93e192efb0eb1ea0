package main

import (
	"bytes"
	"os"
	"testing"
)

// TestPage: the committed page is what the program writes from the committed
// figures, and the goals that the figures must meet are met.
func TestPage(t *testing.T) {
	const root = "../../.."
	want, err := render(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(root + "/docs/dry-run.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/dry-run.md is out of date: go run ./docs/internal/dryrun -write")
	}
}

// TestColumn: nearest-rank quantiles of absolute values, counted by hand.
func TestColumn(t *testing.T) {
	var rows []row
	for i, v := range []float64{-10, 1, 2, -3, 4, 5, 6, 7, 8, 9} {
		rows = append(rows, row{Name: string(rune('a' + i)), Allocated: v})
	}
	got := column(rows, func(r row) float64 { return r.Allocated })
	if want := (figures{Median: 5, P90: 9, Worst: 10, Program: "a"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
