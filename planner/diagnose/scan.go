package diagnose

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Log is what a text says about memory: its out-of-memory messages in order.
type Log struct {
	Messages []Message
	// Fatal is the index of the message that ended the program, as far as the
	// text tells.
	Fatal int
	// Dropped is how many messages were left out of Messages because there are
	// too many; the last ones are always kept.
	Dropped int
}

const (
	// chunk is how much of a log is looked at at a time; behind each place as
	// much as ahead is kept, and before it as much as behind, in bytes.
	chunk  = 1 << 20
	ahead  = 64 << 10
	behind = 16 << 10
	// maxMessage bounds a message's length, maxFirst and maxLast how many
	// messages of a log are kept.
	maxMessage = 6000
	maxFirst   = 200
	maxLast    = 800
)

// Parse is [Scan] for a text at hand: it returns the message that ended the
// program. The error is ErrNoMessage.
func Parse(text string) (Message, error) {
	log, err := Scan(strings.NewReader(text))
	if err != nil {
		return Message{}, err
	}
	return log.Messages[log.Fatal], nil
}

// Scan reads a log of any length in bounded memory and finds its out-of-memory
// messages. The error is ErrNoMessage if there is none, or r's error.
func Scan(r io.Reader) (Log, error) {
	s := scanner{}
	s.widen(r)
	buf := make([]byte, 0, chunk+ahead+behind)
	for eof := false; !eof; {
		n, err := io.ReadFull(s.r, buf[len(buf):min(cap(buf), len(buf)+chunk)])
		buf = buf[:len(buf)+n]
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			eof = true
		default:
			return Log{}, fmt.Errorf("read the text: %w", err)
		}
		to := len(buf)
		if !eof {
			to = max(0, to-ahead)
		}
		s.piece(buf, to)
		drop := max(0, to-behind)
		s.base += int64(drop)
		s.done = max(0, to-drop)
		buf = buf[:copy(buf, buf[drop:])]
	}
	if s.base == 0 && len(buf) < ahead {
		s.unbreak(buf)
	}
	return s.finish()
}

// unbreak reads a short text again without its line ends if that tells more: a
// terminal that breaks lines at its width cuts words and numbers in two.
func (s *scanner) unbreak(text []byte) {
	if slices.ContainsFunc(s.log.Messages, func(m Message) bool { return !m.weak && !m.Truncated }) || !bytes.Contains(bytes.TrimSpace(text), []byte("\n")) {
		return
	}
	whole := scanner{}
	joined := bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r"), nil), []byte("\n"), nil)
	whole.piece(joined, len(joined))
	if slices.ContainsFunc(whole.log.Messages, func(m Message) bool { return !m.weak && !m.Truncated }) {
		s.log = whole.log
		for i := range s.log.Messages {
			m := &s.log.Messages[i]
			m.Length = min(m.Length, len(text)-int(min(m.Offset, int64(len(text)))))
		}
	}
}

// A scanner is the work on one text.
type scanner struct {
	r    io.Reader
	base int64 // offset of the piece at hand
	done int   // up to where the piece has been searched
	log  Log
	last []Message // the newest messages beyond maxFirst, a ring once it is full
	next int       // the oldest of a full ring

	// What the names near the newest message were, and where that was.
	near   Around
	nearAt int64
}

// widen takes care of texts in UTF-16, which Windows writes.
func (s *scanner) widen(r io.Reader) {
	head := make([]byte, 2)
	n, err := io.ReadFull(r, head)
	rest := io.MultiReader(bytes.NewReader(head[:n]), r)
	if err != nil && n == 0 {
		rest = io.MultiReader(bytes.NewReader(nil), &failing{err})
	}
	switch {
	case n == 2 && head[0] == 0xff && head[1] == 0xfe:
		s.r = &utf16Reader{r: r, order: binary.LittleEndian}
	case n == 2 && head[0] == 0xfe && head[1] == 0xff:
		s.r = &utf16Reader{r: r, order: binary.BigEndian}
	default:
		s.r = rest
	}
}

// failing returns the error that ended a reader before its first byte.
type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) {
	if errors.Is(f.err, io.ErrUnexpectedEOF) {
		return 0, io.EOF
	}
	return 0, f.err
}

// utf16Reader decodes UTF-16 to UTF-8.
type utf16Reader struct {
	r     io.Reader
	order binary.ByteOrder
	out   []byte
}

func (u *utf16Reader) Read(p []byte) (int, error) {
	if len(u.out) == 0 {
		var in [4096]byte
		n, err := io.ReadFull(u.r, in[:])
		if n < 2 {
			if err == io.ErrUnexpectedEOF {
				err = io.EOF
			}
			return 0, err
		}
		units := make([]uint16, n/2)
		for i := range units {
			units[i] = u.order.Uint16(in[2*i:])
		}
		u.out = []byte(string(utf16.Decode(units)))
	}
	n := copy(p, u.out)
	u.out = u.out[n:]
	return n, nil
}

// A place is where a wording begins in a flattened text.
type place struct {
	at      int
	wording int
}

// phraseIndex finds wordings by the first four letters of their phrases.
var phraseIndex = func() (index struct {
	bits  [1 << 10]uint64
	start map[uint32][]int
}) {
	index.start = map[uint32][]int{}
	for i, w := range wordings {
		key := binary.LittleEndian.Uint32([]byte(w.phrase[:4]))
		index.start[key] = append(index.start[key], i)
		h := hash(key)
		index.bits[h>>6] |= 1 << (h & 63)
	}
	return index
}()

func hash(x uint32) uint32 { return x * 0x9E3779B1 >> 16 }

// find lists the places of wordings, in order, the first wording at each.
func (f *flat) find() []place {
	var places []place
	for i := 0; i+4 <= len(f.low); i++ {
		key := binary.LittleEndian.Uint32(f.low[i:])
		h := hash(key)
		if phraseIndex.bits[h>>6]&(1<<(h&63)) == 0 {
			continue
		}
		if i > 0 && wordByte(f.low[i-1]) && wordByte(f.low[i]) {
			continue
		}
		for _, k := range phraseIndex.start[key] {
			w := &wordings[k]
			if bytes.HasPrefix(f.low[i:], []byte(w.phrase)) && (w.check == nil || w.check.Match(f.text[i:min(len(f.text), i+400)])) {
				places = append(places, place{i, k})
				break
			}
		}
	}
	return places
}

func wordByte(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }

// piece reads the messages that begin in src[s.done:to].
func (s *scanner) piece(src []byte, to int) {
	f := flatten(src)
	places := f.find()
	for i := 0; i < len(places); i++ {
		p := places[i]
		from := f.source(p.at)
		if from >= to {
			break
		}
		end := min(len(f.text), p.at+maxMessage)
		for _, next := range places[i+1:] {
			if next.at >= end {
				break
			}
			if sameKind(p, next) {
				end = next.at
				break
			}
		}
		w := &wordings[p.wording]
		m := Message{Framework: w.framework, Cause: w.cause, GPU: -1, Rank: -1}
		rd := reader{before: string(f.text[max(0, p.at-240):p.at]), s: string(f.text[p.at:end]), used: len(w.phrase)}
		if w.read != nil {
			w.read(&rd, &m)
		}
		rd.used = min(rd.used, len(rd.s))
		// Go on behind this message: a wording often holds others.
		for i+1 < len(places) && places[i+1].at < p.at+rd.used {
			i++
		}
		if m.Framework == "" || from < s.done {
			continue
		}
		until := len(src)
		if p.at+rd.used < len(f.text) {
			until = f.source(p.at + rd.used)
		}
		m.Offset, m.Length = s.base+int64(from), max(0, until-from)
		m.end = m.Offset + int64(m.Length)
		m.text = rd.s[:rd.used]
		m.Rank, m.Time = whereAndWhen(src, from)
		if !m.Handled {
			m.Handled = handled(rd.before, string(f.text[p.at+rd.used:min(len(f.text), p.at+rd.used+300)]))
		}
		if s.nearAt == 0 || m.Offset-s.nearAt > 2<<10 {
			s.near = around(src[max(0, from-8<<10):from], src[until:min(len(src), until+8<<10)])
			s.nearAt = m.Offset
		}
		m.Around = s.near
		m.weak = w.weak || m.Framework.caching() && !m.Requested.Known && m.Cause == Unsaid
		s.add(m)
	}
}

// sameKind reports whether the message at p must end where next begins.
func sameKind(p, next place) bool {
	a, b := &wordings[p.wording], &wordings[next.wording]
	if a.phrase == b.phrase {
		return true
	}
	if bfc(a.framework) && bfc(b.framework) {
		return next.at-p.at > 120
	}
	if !a.framework.caching() || !b.framework.caching() || b.read == nil {
		return false
	}
	return b.phrase != "tried to allocate" || next.at-p.at > 60
}

// add takes a message, or counts it as a repeat of one already there: a
// traceback and its summary, or a retry, print the same again.
func (s *scanner) add(m Message) {
	same := func(o *Message) bool {
		return o.text == m.text && (o.Rank == m.Rank || o.Rank < 0 || m.Rank < 0) && o.Framework == m.Framework
	}
	for _, list := range [][]Message{s.last, s.log.Messages} {
		for back := 1; back <= min(64, len(list)); back++ {
			k := len(list) - back
			if len(list) == maxLast {
				k = (s.next - back + maxLast) % maxLast
			}
			if o := &list[k]; same(o) {
				o.Repeats++
				o.end = m.end
				o.Handled = o.Handled && m.Handled
				if o.Rank < 0 {
					o.Rank = m.Rank
				}
				return
			} else if merged(o, &m) {
				return
			}
		}
	}
	switch {
	case len(s.log.Messages) < maxFirst:
		s.log.Messages = append(s.log.Messages, m)
	case len(s.last) < maxLast:
		s.last = append(s.last, m)
	default:
		s.log.Dropped++
		s.last[s.next] = m
		s.next = (s.next + 1) % maxLast
	}
}

// bfc reports whether f has the allocator that TensorFlow and XLA share.
func bfc(f Framework) bool { return f == JAX || f == TensorFlow }

// merged joins the parts of one failure of the BFC allocator: the allocator's
// own line, its counters before or after it, and the error that the program
// raises.
func merged(o, m *Message) bool {
	if !bfc(o.Framework) || !bfc(m.Framework) || o.Cause == CompileTime || m.Cause == CompileTime || m.Offset-o.end > 8<<20 {
		return false
	}
	if o.Handled != m.Handled && o.Cause != StatsOnly && m.Cause != StatsOnly {
		return false
	}
	if o.GPU >= 0 && m.GPU >= 0 && o.GPU != m.GPU || o.Rank >= 0 && m.Rank >= 0 && o.Rank != m.Rank {
		return false
	}
	differ := func(a, b Quantity) bool { return a.surelyMore(b) || b.surelyMore(a) }
	if o.Requested.Known && m.Requested.Known && differ(o.Requested, m.Requested) {
		// XLA asks for the size, BFC for the size rounded to 256 bytes.
		if d := o.Requested.Bytes - m.Requested.Bytes; d > 256+o.Requested.Rounding+m.Requested.Rounding || -d > 256+o.Requested.Rounding+m.Requested.Rounding {
			return false
		}
	}
	if o.Allocated.Known && m.Allocated.Known && o.Allocated != m.Allocated {
		return false
	}
	fill := func(to *Quantity, from Quantity) {
		if !to.Known || from.Known && from.Rounding < to.Rounding {
			*to = from
		}
	}
	fill(&o.Requested, m.Requested)
	fill(&o.Allocated, m.Allocated)
	fill(&o.Allowed, m.Allowed)
	fill(&o.Reserved, m.Reserved)
	fill(&o.LargestFree, m.LargestFree)
	fill(&o.Free, m.Free)
	fill(&o.Total, m.Total)
	if o.Cause == StatsOnly {
		o.Cause = m.Cause
		o.Handled = m.Handled
	}
	if m.Framework == TensorFlow {
		o.Framework = TensorFlow
	}
	if o.GPU < 0 {
		o.GPU = m.GPU
	}
	if o.Rank < 0 {
		o.Rank = m.Rank
	}
	if o.Time == "" {
		o.Time = m.Time
	}
	o.end = m.end
	return true
}

// finish chooses the message that counts.
func (s *scanner) finish() (Log, error) {
	s.log.Messages = append(append(s.log.Messages, s.last[s.next:]...), s.last[:s.next]...)
	strong := slices.ContainsFunc(s.log.Messages, func(m Message) bool { return !m.weak })
	if strong {
		s.log.Messages = slices.DeleteFunc(s.log.Messages, func(m Message) bool { return m.weak })
	}
	if len(s.log.Messages) == 0 {
		return Log{}, ErrNoMessage
	}
	s.log.Fatal = fatal(s.log.Messages)
	return s.log, nil
}

// burst is how far apart the messages of several ranks that die together may
// stand, in bytes.
const burst = 256 << 10

// fatal is the index of the message that ended the program: the last failure
// that nobody handled, or the first of those with numbers that other ranks
// wrote together with it. A rank that dies takes the others with it.
func fatal(ms []Message) int {
	last := len(ms) - 1
	for last > 0 && ms[last].Handled {
		last--
	}
	if ms[last].Handled {
		last = len(ms) - 1
	}
	best := last
	ranks := map[int]bool{ms[last].Rank: true}
	for i := last - 1; i >= 0; i-- {
		m := &ms[i]
		if m.Handled {
			continue
		}
		if ms[i+1].Offset-m.end > burst || minute(m.Time) != minute(ms[last].Time) {
			break
		}
		consequence := !numbers(ms[best]) && ms[best].Framework != m.Framework
		if ranks[m.Rank] && !consequence {
			break
		}
		ranks[m.Rank] = true
		if numbers(*m) || !numbers(ms[best]) {
			best = i
		}
	}
	return best
}

func numbers(m Message) bool { return m.Requested.Known || m.Allocated.Known || m.Tokens > 0 }

// minute is a time's part up to the minutes, for telling what happened
// together.
func minute(t string) string {
	if i := strings.LastIndexByte(t, ':'); i >= 0 {
		return t[:i]
	}
	return t
}

var (
	reRank = regexp.MustCompile(`(?i)\[?rank[ =:]?(\d+)\]?[:\]\s,)]|\[default(\d+)\]:|\[\d+,(\d+)\]<|\b(?:TP|Worker_TP|DP\d+ TP|DP\d+_TP)(\d+)\b|^\s*(\d+): `)
	reTime = regexp.MustCompile(`\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?|\b\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d`)
)

// whereAndWhen reads the rank and the time of the line at src[at], or of the nearest
// line before it that has them.
func whereAndWhen(src []byte, at int) (rank int, time string) {
	const far = 8 << 10
	src = src[max(0, at-far):at]
	lineAt := bytes.LastIndexByte(src, '\n') + 1
	line := src[max(lineAt, len(src)-300):]
	rank = -1
	if g := reRank.FindSubmatch(line); g != nil {
		rank = firstInt(g)
	}
	for range 60 {
		if clock(line) {
			time = string(reTime.Find(line))
		}
		if time != "" || lineAt == 0 {
			break
		}
		end := lineAt - 1
		lineAt = bytes.LastIndexByte(src[:end], '\n') + 1
		line = src[lineAt:min(end, lineAt+200)]
	}
	return rank, time
}

// clock reports whether a line may hold a time of day.
func clock(line []byte) bool {
	for i := 2; i+5 < len(line); i++ {
		if line[i] == ':' && line[i+3] == ':' {
			return true
		}
	}
	return false
}

func firstInt(g [][]byte) int {
	for _, b := range g[1:] {
		if len(b) > 0 {
			if n, err := strconv.Atoi(string(b)); err == nil && n < 1<<20 {
				return n
			}
		}
	}
	return -1
}

var (
	reHandledBefore = regexp.MustCompile(`(?i)\b(?:caught|handled|recovered from|retry\w*|skipping|WARNING: (?:ran out of memory|OOM)|attempting to recover|will retry|ignor\w+|falling back|fallback)\b[^.]{0,120}$`)
	reHandledAfter  = regexp.MustCompile(`(?i)^.{0,200}?\b(?:retrying|retry with|skipping (?:the |this )?(?:batch|step|sample)|skipped batch|attempting to recover|recovering|reducing (?:the )?batch|reduced batch|halving|lowering (?:the )?batch|falling back|got an oom, unloading|trying again|continuing with)\b`)
)

// handled reports whether the words around a message say that the program
// went on.
func handled(before, after string) bool {
	if i := strings.Index(after, "Traceback"); i >= 0 {
		after = after[:i]
	}
	return reHandledBefore.MatchString(before[max(0, len(before)-160):]) || reHandledAfter.MatchString(after)
}

// around looks for names near a message.
func around(before, after []byte) Around {
	low := bytes.ToLower(append(append(make([]byte, 0, len(before)+len(after)+1), before...), after...))
	has := func(subs ...string) bool {
		return slices.ContainsFunc(subs, func(s string) bool { return bytes.Contains(low, []byte(s)) })
	}
	return Around{
		Windows:     has(`:\users\`, `\site-packages\`, `\lib\`, "win32", "windows-1", "win_amd64"),
		Jetson:      has("jetson", "tegra", "agx orin", "orin nano", "orin nx", "xavier", "nvgpu"),
		Graphs:      has("cudagraph", "cuda_graph", "capture_graph", "graph_runner", "graph_pool", "cuda graph"),
		MemPool:     has("use_mem_pool", "mempool", "mem_pool"),
		Doze:        has("sleep_mode", "sleep mode", "cumem", "torch_memory_saver", "memory_saver"),
		VLLM:        has("vllm"),
		SGLang:      has("sglang"),
		Distributed: has("nccl", "torchrun", "deepspeed", "fsdp", "[rank", "processgroup", "process group", "accelerate launch"),
		Compile:     has("inductor", "torch.compile", "reduce-overhead"),
	}
}
