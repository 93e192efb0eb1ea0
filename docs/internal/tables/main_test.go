package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestPagesCurrent fails when a committed page is not what the program writes.
func TestPagesCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every program of the pages")
	}
	const root = "../../.."
	pages, err := render(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		have, err := os.ReadFile(filepath.Join(root, p.path))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, p.text) {
			t.Errorf("%s is out of date: go run ./docs/internal/tables -write", p.path)
		}
	}
}
