package formats

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

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

// Write writes t to path in the format that the ending of path names,
// optionally followed by .gz or .zst. Either the whole file appears or, on an
// error or when ctx is done, none. The notes say what the format cannot carry.
func Write(ctx context.Context, path string, t *traces.Trace) (notes []string, err error) {
	w, err := writerFor(path)
	if err != nil {
		return nil, err
	}
	err = WritePacked(path, func(out io.Writer) error { return w.write(ctx, out, t) })
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("writing %s: %w", path, err)
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

// WritePacked is WriteFile for a file that is packed if path ends in .gz or
// .zst.
func WritePacked(path string, f func(io.Writer) error) error {
	return WriteFile(path, func(out io.Writer) error { return pack(path, out, f) })
}

// WriteFile writes a file through f so that path either holds all of it or is
// left as it was: f writes to a temporary name in the same folder, which is
// renamed when f succeeds and removed when it fails or panics. What is not a
// regular file, such as /dev/stdout, is written directly.
func WriteFile(path string, f func(io.Writer) error) (err error) {
	target := path
	mode := os.FileMode(0o666)
	if st, e := os.Stat(path); e == nil {
		if st.IsDir() {
			return fmt.Errorf("%s is a folder", path)
		}
		if !st.Mode().IsRegular() {
			out, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			b := bufio.NewWriter(out)
			return errors.Join(f(b), b.Flush(), out.Close())
		}
		mode = st.Mode().Perm()
		// Write through a link instead of replacing it.
		if target, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	dir, base := filepath.Split(target)
	temp := filepath.Join(dir, "."+base+"."+rand.Text()[:8]+".tmp")
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("there is no folder %s", dir)
		}
		return err
	}
	done := false
	defer func() {
		if !done {
			out.Close()
			os.Remove(temp)
		}
	}()
	b := bufio.NewWriterSize(out, 1<<16)
	if err := f(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return err
	}
	done = true
	return nil
}
