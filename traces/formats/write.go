package formats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"allocsim/internal/outfile"
	"allocsim/traces"
)

// writer is how a format is written.
type writer struct {
	name   string // Format.Name
	ending string
	write  func(ctx context.Context, w io.Writer, t *traces.Trace) error
	// losses says what of t the format cannot carry.
	losses func(t *traces.Trace) []string
}

// Output is the file at path for a trace, in the format that the ending of path
// names, optionally followed by .gz or .zst. Sources are the files that the
// program reads; the file is none of them, and replaces no file of another kind.
func Output(path string, sources ...outfile.Source) (*outfile.File, error) {
	w, err := writerFor(path)
	if err != nil {
		return nil, err
	}
	kind := outfile.Kind{Name: "a trace in " + w.name, Is: func(f *os.File) bool { return formatOf(f) == w.name }}
	for _, f := range Formats() {
		if f.Name == w.name {
			kind.Name = f.Title
		}
	}
	return outfile.New(path, kind, sources...)
}

// Write writes t to out, in the format that the ending of its name tells.
// Either the whole file appears or, on an error or when ctx is done, none. The
// notes say what the format cannot carry.
func Write(ctx context.Context, out *outfile.File, t *traces.Trace) (notes []string, err error) {
	w, err := writerFor(out.Path())
	if err != nil {
		return nil, err
	}
	err = WritePacked(out, func(to io.Writer) error { return w.write(ctx, to, t) })
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("writing %s: %w", out.Path(), err)
	}
	return w.losses(t), nil
}

// Encode writes t to w in the format with the given Name, without packing.
func Encode(ctx context.Context, w io.Writer, t *traces.Trace, format string) (notes []string, err error) {
	for _, f := range writers {
		if f.name == format {
			return f.losses(t), f.write(ctx, w, t)
		}
	}
	var names []string
	for _, f := range writers {
		names = append(names, f.name)
	}
	return nil, fmt.Errorf("traces cannot be written as %q; choose one of %s", format, strings.Join(names, ", "))
}

func writerFor(path string) (*writer, error) {
	plain := strings.ToLower(PlainName(path))
	for i := range writers {
		if strings.HasSuffix(plain, writers[i].ending) {
			return &writers[i], nil
		}
	}
	var endings []string
	for _, w := range writers {
		endings = append(endings, w.ending)
	}
	return nil, fmt.Errorf("%s: the ending names no format that can be written; use one of %s (and .gz or .zst after it to pack)", path, strings.Join(endings, ", "))
}

// pack runs f with a writer that packs as the ending of path asks.
func pack(path string, out io.Writer, f func(io.Writer) error) error {
	var z io.WriteCloser
	switch filepath.Ext(path) {
	case ".gz":
		z = gzip.NewWriter(out)
	case ".zst", ".zstd":
		var err error
		if z, err = zstd.NewWriter(out, zstd.WithEncoderConcurrency(1)); err != nil {
			return err
		}
	case ".bz2":
		return errors.New("bzip2 can be read but not written; use .gz or .zst")
	default:
		return f(out)
	}
	if err := f(z); err != nil {
		z.Close()
		return err
	}
	return z.Close()
}

// WritePacked writes out through f, packed if its name ends in .gz or .zst.
func WritePacked(out *outfile.File, f func(io.Writer) error) error {
	return out.Write(func(to io.Writer) error { return pack(out.Path(), to, f) })
}
