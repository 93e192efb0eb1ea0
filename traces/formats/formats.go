// Package formats opens any trace that people have and writes those formats
// that can be written. It recognises a file by its content, unpacks gzip and
// Zstandard on the way, finds the sidecar of a PyTorch snapshot, and says in
// one line what is wrong with a file and what to try.
//
// [Open] is what commands call; [Write] picks a format by the ending of the
// name of an [Output].
package formats

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"allocsim/traces"
	"allocsim/traces/native"
	"allocsim/traces/perfetto"
)

// Options say how to open a trace. The zero value is right for most.
type Options struct {
	// Sidecar is the path of the sidecar of a PyTorch snapshot; empty = look
	// for NAME.json beside NAME.pickle.
	Sidecar string
	// Progress, if not nil, is called now and then with the bytes of the file
	// read so far and in all; total is 0 when unknown.
	Progress func(done, total int64)
	// Stdin replaces the process's standard input for the path "-".
	Stdin io.Reader
}

// Format describes a format for help texts.
type Format struct {
	// Name is what Trace.Format holds.
	Name string
	// Title is what people call it.
	Title string
	// Endings are usual endings of file names; a file whose name ends in the
	// first is written in this format.
	Endings     []string
	Read, Write bool
}

// headSize is how much of a file detection sees.
const headSize = 64 << 10

// reader is an entry of the table of formats.
type reader struct {
	Format
	detect func(head []byte) bool
	read   func(ctx context.Context, s *source) (*traces.Recording, error)
}

// Formats lists every format in the order in which they are tried.
func Formats() []Format {
	var out []Format
	for _, r := range readers {
		out = append(out, r.Format)
	}
	return append(out, writeOnly...)
}

// source is an opened file.
type source struct {
	ctx      context.Context
	path     string // as given; "-" for standard input
	name     string // for messages
	opts     Options
	r        *bufio.Reader // the unpacked content
	file     *os.File      // the file itself if it is not packed and can be read at random; else nil
	size     int64         // of file
	packed   string        // "gzip", "Zstandard", "bzip2" or empty
	raw      *watched      // counts the bytes of the file itself
	closers  []func()
	progress *progress
}

func (s *source) onClose(f func()) { s.closers = append(s.closers, f) }

func (s *source) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// Open reads the trace at path; "-" is standard input. The error names the
// file and, where possible, what to try instead.
func Open(ctx context.Context, path string, opts Options) (*traces.Recording, error) {
	s, err := open(ctx, path, opts)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return nil, err
	}
	head, err := s.r.Peek(headSize)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", s.name, s.explain(err))
	}
	if perfetto.Detect(head) {
		return nil, fmt.Errorf("%s: counter tracks that allocsim wrote for ui.perfetto.dev: curves without requests; give the trace that they were made from", s.name)
	}
	for _, f := range readers {
		if !f.detect(head) {
			continue
		}
		rec, err := f.read(ctx, s)
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%s (%s): %w", s.name, f.Title, s.explain(err))
		}
		if s.progress != nil {
			s.progress.finish()
		}
		return rec, nil
	}
	return nil, fmt.Errorf("%s: %w", s.name, unknown(head, s.path))
}

// open opens path and unpacks it. The source is not nil when there is
// something to close.
func open(ctx context.Context, path string, opts Options) (*source, error) {
	s := &source{ctx: ctx, path: path, name: path, opts: opts}
	var raw io.Reader
	if path == "-" {
		s.name = "standard input"
		raw = os.Stdin
		if opts.Stdin != nil {
			raw = opts.Stdin
		}
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, openError(path, err)
		}
		s.onClose(func() { f.Close() })
		st, err := f.Stat()
		if err != nil {
			return s, err
		}
		if st.IsDir() {
			return s, fmt.Errorf("%s is a folder; give the trace file inside it", path)
		}
		if st.Mode().IsRegular() {
			s.file, s.size = f, st.Size()
		}
		raw = f
	}
	if opts.Progress != nil {
		s.progress = &progress{report: opts.Progress, total: s.size}
	}
	s.raw = &watched{ctx: ctx, r: raw, p: s.progress}
	br := bufio.NewReaderSize(s.raw, headSize)
	head, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return s, fmt.Errorf("%s: %w", s.name, err)
	}
	if len(head) == 0 {
		return s, fmt.Errorf("%s is empty", s.name)
	}
	how, content, end, err := unpack(br)
	if err != nil {
		return s, fmt.Errorf("%s: %s: %w", s.name, how, err)
	}
	s.r = br
	if how != "" {
		s.onClose(end)
		s.packed, s.file = how, nil
		s.r = bufio.NewReaderSize(&watched{ctx: s.ctx, r: content}, headSize)
	}
	return s, nil
}

// unpack returns how r is packed ("gzip", "Zstandard", "bzip2", or empty), what
// is inside, and what to call when that is no longer read.
func unpack(r *bufio.Reader) (how string, content io.Reader, end func(), err error) {
	end = func() {}
	head, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		return "gzip", z, end, err
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err == nil {
			end = z.Close
		}
		return "Zstandard", z, end, err
	case bytes.HasPrefix(head, []byte("BZh")):
		return "bzip2", bzip2.NewReader(r), end, nil
	}
	return "", r, end, nil
}

// Content opens the file at path and unpacks it, without looking at what it is.
func Content(ctx context.Context, path string) (io.ReadCloser, error) {
	s, err := open(ctx, path, Options{})
	if err != nil {
		if s != nil {
			s.close()
		}
		return nil, err
	}
	return &content{s.r, s}, nil
}

// content is the unpacked content of a source.
type content struct {
	io.Reader
	s *source
}

func (c *content) Close() error {
	c.s.close()
	return nil
}

// formatOf is the name of the format of f, packed or not; empty if unknown.
func formatOf(f *os.File) string {
	how, content, end, err := unpack(bufio.NewReaderSize(f, headSize))
	if err != nil {
		return ""
	}
	defer end()
	// What is cut short or damaged further on may be known by its beginning.
	head, _ := bufio.NewReaderSize(content, headSize).Peek(headSize)
	if perfetto.Detect(head) || perfetto.DetectMerged(head) {
		return perfetto.Format
	}
	for _, r := range readers {
		if r.detect(head) {
			if r.Name == native.FormatParquet && how == "" && !namesColumns(f) {
				return ""
			}
			return r.Name
		}
	}
	return ""
}

// namesColumns reports whether the end of a Parquet file, where its columns are
// listed, has those of a trace: any table may be Parquet.
func namesColumns(f *os.File) bool {
	st, err := f.Stat()
	if err != nil {
		return false
	}
	tail := make([]byte, min(st.Size(), 1<<20))
	if _, err := f.ReadAt(tail, st.Size()-int64(len(tail))); err != nil {
		return false
	}
	for _, column := range []string{"time_us", "action", "size"} {
		if !bytes.Contains(tail, []byte(column)) {
			return false
		}
	}
	return true
}

// maxWindow is what the zstd tool accepts without being told otherwise.
const maxWindow = 128 << 20

// explain adds what a bare reading error means.
func (s *source) explain(err error) error {
	switch {
	case s.packed != "" && errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the %s file is cut short; copy it again", err, s.packed)
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return fmt.Errorf("%w: it was packed with a window over 128 MiB; unpack it with zstd -d --long=31 first", err)
	}
	return err
}

func openError(path string, err error) error {
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, ending := range []string{".zst", ".gz"} {
		if _, e := os.Stat(path + ending); e == nil {
			return fmt.Errorf("there is no file %s, but there is %s", path, path+ending)
		}
	}
	return fmt.Errorf("there is no file %s", path)
}

// random gives random access to the content: the file itself, or a temporary
// copy of what is packed or comes through a pipe.
func (s *source) random() (*os.File, int64, error) {
	if s.file != nil {
		return s.file, s.size, nil
	}
	f, err := os.CreateTemp("", "allocsim-*")
	if err != nil {
		return nil, 0, err
	}
	s.onClose(func() {
		f.Close()
		os.Remove(f.Name())
	})
	var n int64
	for {
		// What unpacks to far more than real traces do would fill the disk.
		if n > maxUnpacked && n > maxRatio*s.raw.n {
			return nil, 0, fmt.Errorf("it unpacks to more than %d times its size; unpack it yourself if that is right", maxRatio)
		}
		k, err := io.CopyN(f, s.r, 1<<20)
		n += k
		if err == io.EOF {
			return f, n, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

const (
	maxUnpacked = 256 << 20 // bytes that may be unpacked in any case
	maxRatio    = 100
)

// PlainName is the file's name without the ending that tells its packing.
func PlainName(path string) string {
	for _, ending := range []string{".gz", ".zst", ".zstd", ".bz2"} {
		if p := strings.TrimSuffix(path, ending); p != path {
			return p
		}
	}
	return path
}

// watched counts what is read and stops when ctx is done.
type watched struct {
	ctx context.Context
	r   io.Reader
	p   *progress
	n   int64
}

func (w *watched) Read(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.r.Read(b)
	w.n += int64(n)
	if w.p != nil {
		w.p.add(int64(n))
	}
	return n, err
}

// progress passes on what was read, at most once a step.
type progress struct {
	report      func(done, total int64)
	done, total int64
	told        int64
}

const progressStep = 1 << 20

func (p *progress) add(n int64) {
	p.done += n
	if p.done-p.told >= progressStep {
		p.told = p.done
		p.report(p.done, p.total)
	}
}

func (p *progress) finish() { p.report(max(p.done, p.total), p.total) }

// unknown explains a file that no reader wants.
func unknown(head []byte, path string) error {
	has := func(s string) bool { return bytes.HasPrefix(head, []byte(s)) }
	text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	ending := strings.ToLower(filepath.Ext(PlainName(path)))
	switch {
	case len(text) == 0:
		return errors.New("there is nothing in it but white space")
	case has("PK\x03\x04"):
		return errors.New("a zip archive: unpack it if a snapshot is packed in it; what torch.save wrote can't be read, so load it and write the snapshot with pickle.dump (a new one: torch.cuda.memory._dump_snapshot, see allocsim record)")
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return errors.New("a tar archive: unpack it and give the snapshot that is in it")
	case has("\xfd7zXZ"), has("7z\xbc\xaf"):
		return errors.New("packed with xz or 7z; unpack it first (gzip and Zstandard are read as they are)")
	case has("\x1f\x8b"), has("\x28\xb5\x2f\xfd"):
		return errors.New("packed twice; unpack it once")
	case ending == ".nsys-rep" || ending == ".qdrep":
		return errors.New("an Nsight Systems report; convert it with: nsys export --type=sqlite FILE (and record with --cuda-memory-usage=true)")
	case bytes.HasPrefix(bytes.ToLower(text[:min(len(text), 64)]), []byte("<!doctype html")), bytes.HasPrefix(text, []byte("<html")):
		return errors.New("an HTML page, such as a memory_viz plot; give the snapshot that it was made from")
	case bytes.Contains(head[:min(len(head), 4096)], []byte("][info")), bytes.Contains(head[:min(len(head), 4096)], []byte("] [info")):
		return errors.New("looks like RMM's debug log; the log of allocations is written with the environment variable RMM_LOG_FILE")
	case has("version https://git-lfs"):
		return errors.New("a Git LFS pointer, not the file itself; fetch it with git lfs pull")
	case text[0] == '{' && isSidecar(head):
		if p := snapshotOf(path); p != "" {
			return fmt.Errorf("the sidecar of a snapshot; give the snapshot itself: %s", p)
		}
		return errors.New("the sidecar of a snapshot; give the snapshot itself (NAME.pickle)")
	case text[0] == '{' || text[0] == '[':
		return errors.New("JSON, but neither a profiler trace (no \"traceEvents\") nor a memory snapshot")
	}
	if hint := nearlyCSV(text); hint != "" {
		return errors.New(hint)
	}
	var names []string
	for _, r := range readers {
		names = append(names, r.Title)
	}
	return fmt.Errorf("no known kind of trace (it begins with %q); readable are: %s", text[:min(len(text), 24)], strings.Join(names, ", "))
}

// csvColumns are the columns that a CSV must have, with their other names.
var csvColumns = []struct {
	title   string
	columns [][]string
}{
	{"native CSV", [][]string{{"time_us"}, {"action"}, {"id"}, {"size"}}},
	{"minimalloc CSV", [][]string{{"id", "buffer", "buffer_id"}, {"lower", "start", "begin"}, {"upper", "end"}, {"size"}}},
}

// nearlyCSV says what is wrong with a text whose header has all columns of a
// CSV but one, or another separator; empty if it is neither.
func nearlyCSV(text []byte) string {
	var line string
	for rest := string(text); rest != "" && (line == "" || line[0] == '#'); {
		line, rest, _ = strings.Cut(rest, "\n")
		line = strings.TrimSpace(line)
	}
	for _, sep := range []string{",", ";", "\t", "|"} {
		names := make(map[string]bool)
		for _, f := range strings.Split(line, sep) {
			names[strings.ToLower(strings.Trim(f, " \t\""))] = true
		}
		for _, kind := range csvColumns {
			var missing, all []string
			for _, c := range kind.columns {
				all = append(all, c[0])
				if !slices.ContainsFunc(c, func(n string) bool { return names[n] }) {
					missing = append(missing, c[0])
				}
			}
			if len(missing) > 1 {
				continue
			}
			var wrong []string
			if sep != "," {
				wrong = append(wrong, fmt.Sprintf("its columns are separated by %q, not by ','", sep))
			}
			if len(missing) > 0 {
				wrong = append(wrong, "its header lacks the column "+missing[0])
			}
			return fmt.Sprintf("looks like a %s, but %s; the header must name %s", kind.title, strings.Join(wrong, ", and "), strings.Join(all, ","))
		}
	}
	return ""
}
