package native

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/parquet-go/parquet-go/format"

	"allocsim/traces"
)

// DetectParquet reports whether a file that begins with head is Parquet.
func DetectParquet(head []byte) bool { return bytes.HasPrefix(head, []byte("PAR1")) }

// metaPrefix begins the keys of our metadata in a Parquet footer.
const metaPrefix = "allocsim."

// errDamaged is all that can be said when the decoder gives up anywhere.
var errDamaged = errors.New("damaged Parquet file; export or copy it again")

// damage is the error of a file of which the decoder says err; what says the
// same to a user. Errors of reading are not the file's fault.
func damage(err error, what string) error {
	var disk *fs.PathError
	if errors.As(err, &disk) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if strings.Contains(err.Error(), "unsupported compression codec") {
		return errors.New("the Parquet file is packed with a codec that is not read here; write it with zstd, snappy or gzip")
	}
	return fmt.Errorf("damaged Parquet file: %s; export or copy it again", what)
}

// rowsPerGroup keeps a row group small enough for streaming readers and large
// enough to compress.
const rowsPerGroup = 1 << 20

// batch is how many rows are encoded or decoded together.
const batch = 1 << 10

// parquetRow is the schema.
type parquetRow struct {
	TimeUS int64   `parquet:"time_us,delta"`
	Action string  `parquet:"action,dict"`
	ID     *int64  `parquet:"id,optional"`
	Size   *int64  `parquet:"size,optional"`
	Stream *uint64 `parquet:"stream,optional,dict"`
	Pool   *string `parquet:"pool,optional,dict"`
	Stack  *string `parquet:"stack,optional,dict"`
}

// WriteParquet writes t as native Parquet: Zstandard, row groups of about a
// million rows. It returns ctx's error soon after ctx is done.
func WriteParquet(ctx context.Context, w io.Writer, t *traces.Trace) error {
	opts := []parquet.WriterOption{
		parquet.Compression(&zstd.Codec{}),
		parquet.MaxRowsPerRowGroup(rowsPerGroup),
		parquet.CreatedBy("allocsim", "", ""),
	}
	var keys []string
	values := make(map[string][]byte)
	for _, p := range pairsOf(t, false) {
		v, seen := values[p.key]
		if seen {
			v = append(v, '\n')
		} else {
			keys = append(keys, p.key)
		}
		values[p.key] = appendValue(v, p.value)
	}
	for _, k := range keys {
		opts = append(opts, parquet.KeyValueMetadata(metaPrefix+k, string(values[k])))
	}
	pools := make([]string, len(t.Pools))
	for i, id := range t.Pools {
		pools[i] = poolText(id)
	}
	var stacks []string
	if t.Stacks != nil {
		stacks = make([]string, len(t.Stacks.Stack))
		for i := range stacks {
			stacks[i] = string(appendStack(nil, t.Stacks, traces.StackID(i)))
		}
	}
	pw := parquet.NewGenericWriter[parquetRow](w, opts...)
	rows := make([]parquetRow, 0, batch)
	ids, sizes := make([]int64, batch), make([]int64, batch)
	for i := range t.Events {
		e := &t.Events[i]
		n := len(rows)
		r := parquetRow{TimeUS: e.TimeUS, Action: e.Kind.String()}
		if e.ID != traces.NoBlock {
			ids[n] = int64(e.ID)
			r.ID = &ids[n]
			r.Stream = &t.Streams[e.Stream]
		}
		if e.Pool != 0 {
			r.Pool = &pools[e.Pool]
		}
		if e.Kind == traces.Alloc || e.Kind == traces.OOM {
			sizes[n] = e.Size
			r.Size = &sizes[n]
			if stacks != nil {
				if s := t.Stacks.ByBlock[e.ID]; s != traces.NoStack {
					r.Stack = &stacks[s]
				}
			}
		}
		rows = append(rows, r)
		if len(rows) == batch || i == len(t.Events)-1 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if _, err := pw.Write(rows); err != nil {
				return err
			}
			rows = rows[:0]
		}
	}
	return pw.Close()
}

// ReadParquet reads a native Parquet file of size bytes; name is the file's
// name for the trace. Any Parquet file with flat columns of the right names
// will do, whatever wrote it: integers may be of any width, ids may be text.
func ReadParquet(ctx context.Context, r io.ReaderAt, size int64, name string) (rec *traces.Recording, err error) {
	// The decoder is not ours, and the file may be anything.
	defer func() {
		if p := recover(); p != nil {
			rec, err = nil, errDamaged
		}
	}()
	var tail [8]byte
	if size < 12 {
		return nil, errors.New("the Parquet file is cut short")
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return nil, fmt.Errorf("reading the footer: %w", err)
	}
	if n := int64(binary.LittleEndian.Uint32(tail[:4])); string(tail[4:]) != "PAR1" || n > size-12 {
		return nil, errors.New("the Parquet file has no footer: it is cut short or damaged")
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return nil, damage(err, "its footer cannot be read")
	}
	var cols [numCols]int
	var unsigned32 [numCols]bool
	var missing, unknown []string
	for c := range cols {
		cols[c] = -1
	}
next:
	for _, col := range f.Root().Columns() {
		for c, n := range colNames {
			if strings.EqualFold(col.Name(), n) {
				if !col.Leaf() || col.Repeated() {
					return nil, fmt.Errorf("column %s is not a flat column", n)
				}
				cols[c] = col.Index()
				if lt := col.Type().LogicalType(); lt != nil && col.Type().Kind() == parquet.Int32 {
					it, ok := lt.Value.(*format.IntType)
					unsigned32[c] = ok && !it.IsSigned
				}
				continue next
			}
		}
		unknown = append(unknown, col.Name())
	}
	for c := range required {
		if cols[c] < 0 {
			missing = append(missing, colNames[c])
		}
	}
	if missing != nil {
		return nil, fmt.Errorf("the Parquet file lacks the columns %s; it must have time_us, action, id, size and may have stream, pool, stack", strings.Join(missing, ", "))
	}
	a := newAssembler(int(min(f.NumRows(), 1<<20)))
	var extra []string
	if unknown != nil {
		extra = append(extra, fmt.Sprintf("Columns that mean nothing here were skipped: %s.", strings.Join(unknown, ", ")))
	}
	for _, kv := range f.Metadata().KeyValueMetadata {
		k, ok := strings.CutPrefix(kv.Key, metaPrefix)
		if !ok {
			continue
		}
		for v := range strings.SplitSeq(kv.Value, "\n") {
			if err := a.meta.set(k, unescape([]byte(v))); err != nil {
				return nil, fmt.Errorf("metadata %w", err)
			}
		}
	}
	if err := a.begin(); err != nil {
		return nil, err
	}
	n := int64(0)
	for _, g := range f.RowGroups() {
		if err := readGroup(ctx, g, &cols, &unsigned32, a, &n); err != nil {
			return nil, err
		}
	}
	return a.finish(name, FormatParquet, extra)
}

func readGroup(ctx context.Context, g parquet.RowGroup, cols *[numCols]int, unsigned32 *[numCols]bool, a *assembler, n *int64) error {
	var cur [numCols]cursor
	chunks := g.ColumnChunks()
	for c, i := range cols {
		if i >= 0 {
			cur[c].pages = chunks[i].Pages()
			defer cur[c].close()
		}
	}
	for range g.NumRows() {
		*n++
		if *n%batch == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		var v [numCols]parquet.Value
		for c := range cur {
			if cur[c].pages == nil {
				continue
			}
			var err error
			if v[c], err = cur[c].next(); err != nil {
				return damage(err, fmt.Sprintf("the values of column %s cannot be read from row %d on", colNames[c], *n))
			}
			if unsigned32[c] && !v[c].IsNull() {
				v[c] = parquet.Int64Value(int64(v[c].Uint32()))
			}
		}
		rw, err := rowOf(&v)
		if err == nil {
			err = a.add(&rw)
		}
		if err != nil {
			var fe *fieldError
			if errors.As(err, &fe) {
				return fmt.Errorf("row %d (%s): %s", *n, colNames[fe.col], fe.msg)
			}
			return fmt.Errorf("row %d: %w", *n, err)
		}
	}
	return nil
}

// cursor walks the values of one column chunk.
type cursor struct {
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buf    [batch]parquet.Value
	have   []parquet.Value
}

func (c *cursor) next() (parquet.Value, error) {
	for len(c.have) == 0 {
		if c.values == nil {
			p, err := c.pages.ReadPage()
			if err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return parquet.Value{}, err
			}
			c.page, c.values = p, p.Values()
		}
		n, err := c.values.ReadValues(c.buf[:])
		c.have = c.buf[:n]
		if err != nil || n == 0 {
			c.values = nil
			if err != nil && err != io.EOF {
				return parquet.Value{}, err
			}
			if n > 0 {
				// The values may point into the page: keep it until they are
				// used up.
				for i := range c.have {
					c.have[i] = c.have[i].Clone()
				}
			}
			parquet.Release(c.page)
			c.page = nil
		}
	}
	v := c.have[0]
	c.have = c.have[1:]
	return v, nil
}

func (c *cursor) close() {
	if c.page != nil {
		parquet.Release(c.page)
	}
	c.pages.Close()
}

func rowOf(v *[numCols]parquet.Value) (r row, err error) {
	action, _ := textOf(v[colAction])
	kind, ok := kinds[string(action)]
	if !ok {
		return r, bad(colAction, "%q is not one of alloc, free, free_requested, free_completed, empty_cache, oom", action)
	}
	r.kind = kind
	if r.time, _, err = intOf(v[colTime], colTime); err != nil {
		return r, err
	}
	if text, ok := textOf(v[colID]); ok {
		r.id = parseKey(text)
	} else if r.id.n, r.id.set, err = intOf(v[colID], colID); err != nil {
		return r, err
	}
	pool, _ := textOf(v[colPool])
	if kind == traces.EmptyCache || kind == traces.ReleasePool {
		return r, r.setPool(pool)
	}
	if kind != traces.Alloc && kind != traces.OOM {
		return r, nil
	}
	if r.size, _, err = intOf(v[colSize], colSize); err != nil {
		return r, err
	}
	if text, ok := textOf(v[colStream]); ok {
		if r.stream, err = parseStream(string(text)); err != nil {
			return r, bad(colStream, "%v", err)
		}
	} else {
		s, _, err := intOf(v[colStream], colStream)
		if err != nil {
			return r, err
		}
		r.stream = uint64(s)
	}
	if err := r.setPool(pool); err != nil {
		return r, err
	}
	if text, ok := textOf(v[colStack]); ok && len(text) > 0 {
		r.stack = text
	}
	return r, nil
}

func textOf(v parquet.Value) ([]byte, bool) {
	if !v.IsNull() && (v.Kind() == parquet.ByteArray || v.Kind() == parquet.FixedLenByteArray) {
		return v.ByteArray(), true
	}
	return nil, false
}

// intOf reads an integer of any width, or a whole number in a float column,
// which is what pandas makes of integers with gaps. set is false for null.
func intOf(v parquet.Value, col int) (n int64, set bool, err error) {
	if v.IsNull() {
		return 0, false, nil
	}
	var f float64
	switch v.Kind() {
	case parquet.Int32:
		return int64(v.Int32()), true, nil
	case parquet.Int64:
		return v.Int64(), true, nil
	case parquet.Float:
		f = float64(v.Float())
	case parquet.Double:
		f = v.Double()
	default:
		text, ok := textOf(v)
		if !ok {
			return 0, false, bad(col, "a column of %s cannot hold it", v.Kind())
		}
		if len(text) == 0 {
			return 0, false, nil
		}
		n, err := parseInt(text)
		if err != nil {
			return 0, false, bad(col, "%q is not a whole number", text)
		}
		return n, true, nil
	}
	if math.IsNaN(f) {
		return 0, false, nil
	}
	if f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false, bad(col, "%v is not a whole number", f)
	}
	return int64(f), true, nil
}
