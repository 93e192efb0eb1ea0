package pickle_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"allocsim/internal/pickle"
)

// zeros is an endless reader, as a packed file of few bytes can be.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestLongStrings: a string of hundreds of megabytes is refused, not held; one
// that is only promised is a file cut short.
func TestLongStrings(t *testing.T) {
	const head = "\x80\x04X\x00\x00\x00\x10" // 256 MiB follow
	decode := func(r io.Reader) error {
		_, err := pickle.NewDecoder(context.Background(), io.MultiReader(strings.NewReader(head), r), &tree{}).Decode()
		return err
	}
	if err := decode(zeros{}); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
		t.Errorf("got %v", err)
	}
	if err := decode(strings.NewReader("cut")); !errors.Is(err, pickle.ErrTruncated) {
		t.Errorf("got %v", err)
	}
}
