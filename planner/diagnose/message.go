// Package diagnose explains out-of-memory errors. [Parse] finds the message in
// a pasted text or a whole log and reads its numbers; [Diagnose] says from the
// numbers alone what ran out — the card, the allocator's own holes, a limit,
// or memory that someone else holds — and what would help.
//
// Printed numbers are rounded ("1.69 GiB"), so every quantity is carried as an
// interval; where the interval leaves the question open, so does the verdict.
//
// The central inequality: an allocator that wasted nothing could still give
// out slack (what it has reserved but not allocated) plus free (what the device
// has left). If the request is larger than both together, no allocator setting
// can help.
package diagnose

import (
	"bytes"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"allocsim/internal/bytesize"
)

// Quantity is a number of bytes as a message prints it.
type Quantity struct {
	Bytes int64
	// Rounding is the most that the true number differs: half a unit of the
	// last digit printed, 0 where the number is exact.
	Rounding int64
	// Known is unset when the message does not have the number.
	Known bool
}

// Exact is a Quantity without rounding.
func Exact(bytes int64) Quantity { return Quantity{Bytes: bytes, Known: true} }

// Low and High bound the true number.
func (q Quantity) Low() int64 { return q.Bytes - q.Rounding }

// High is the largest the number can be.
func (q Quantity) High() int64 { return q.Bytes + q.Rounding }

// plus and minus are unknown if an operand is.
func (q Quantity) plus(r Quantity) Quantity {
	return Quantity{q.Bytes + r.Bytes, q.Rounding + r.Rounding, q.Known && r.Known}
}

func (q Quantity) minus(r Quantity) Quantity {
	return Quantity{q.Bytes - r.Bytes, q.Rounding + r.Rounding, q.Known && r.Known}
}

// surelyAtMost and surelyMore compare so that no rounding can change the
// answer. Both are false for unknown operands and in between.
func (q Quantity) surelyAtMost(r Quantity) bool { return q.Known && r.Known && q.High() <= r.Low() }
func (q Quantity) surelyMore(r Quantity) bool   { return q.Known && r.Known && q.Low() > r.High() }

// Framework says whose message it is.
type Framework string

// The frameworks.
const (
	PyTorch      Framework = "PyTorch"
	PyTorchAsync Framework = "PyTorch cudaMallocAsync"
	PyTorchMPS   Framework = "PyTorch MPS"
	JAX          Framework = "JAX/XLA"
	TensorFlow   Framework = "TensorFlow"
	CuPy         Framework = "CuPy"
	RMM          Framework = "RMM"
	CUDA         Framework = "CUDA"
	Host         Framework = "host memory"
	// Recorded marks numbers from a recording or a simulation.
	Recorded Framework = "recording"
)

// Process is another process that the message names.
type Process struct {
	PID  int64
	Uses Quantity
}

// Message is what an out-of-memory message says.
type Message struct {
	Framework Framework
	// Offset and Length are the place of the message in the text.
	Offset, Length int
	// Count is the number of out-of-memory messages in the text with different
	// numbers; this one is the first that has any.
	Count int
	// GPU is the device index, -1 when not said.
	GPU int

	// Requested is what the allocator asked the driver for. PyTorch prints the
	// segment, not the tensor: 2 MiB for up to 1 MiB, 20 MiB for up to 10 MiB.
	Requested Quantity
	// Total is the device's memory and Free what of it is free.
	Total, Free Quantity
	// Allocated is what tensors hold, Reserved what the allocator holds,
	// Unallocated the difference.
	Allocated, Reserved, Unallocated Quantity
	// PrivatePools is free memory inside private pools such as those of CUDA
	// graphs, which others cannot use. PyTorch counts it as allocated.
	PrivatePools Quantity
	// Allowed is the limit in force, unknown when there is none.
	Allowed Quantity
	// Process is what this process holds on the device in all, Others what
	// other processes hold.
	Process Quantity
	Others  []Process
	// LargestFree is the largest free block; only recordings know it.
	LargestFree Quantity
	// Unlimited is set for a simulated device without bounds.
	Unlimited bool

	// PoolFull is set when RMM says that its pool reached its maximum.
	PoolFull bool

	// Before21 and Before20 say that the wording is that of PyTorch before 2.1,
	// and before 1.4 respectively.
	Before21, Before14 bool
	// ROCm is set for HIP builds.
	ROCm bool
	// Truncated is set when the message breaks off before its usual end.
	Truncated bool
}

// ErrNoMessage is returned by Parse for a text without an out-of-memory
// message.
var ErrNoMessage = errors.New("no out-of-memory message found; paste the line that says \"out of memory\" with its numbers")

// maxText bounds what Parse reads of a log, maxMessage a message's length.
const (
	maxText    = 64 << 20
	maxMessage = 6000
	// maxPlaces bounds the places looked at, maxSeen the messages compared.
	maxPlaces = 5000
	maxSeen   = 1000
)

// anchors find where messages begin. Their blanks stand for whatever separates
// words in a log.
var anchors = regexp.MustCompile(`(?i)(?:` + strings.ReplaceAll(strings.Join([]string{
	`(?:CUDA|HIP|XPU|NPU|MUSA) out of memory(?:\.? Tried to allocate)?`,
	`MPS backend out of memory`,
	`Tried to allocate`,
	`Allocation on device \d+ would exceed allowed memory`,
	`RESOURCE_EXHAUSTED`,
	`RESOURCE EXHAUSTED`,
	`Out of memory while trying to allocate`,
	`(?:Allocator \([\w/:]+\) )?ran out of memory trying to allocate`,
	`Failed to allocate (?:request for|[0-9])`,
	`OOM when allocating tensor`,
	`Out of memory (?:allocating|to allocate) [0-9]`,
	`std::bad_alloc: (?:out_of_memory|RMM|CUDA)`,
	`you tried to allocate`,
	`CUDA error: out of memory`,
	`cuda runtime error \(2\)\s*: out of memory`,
	`cudaErrorMemoryAllocation`,
	`CUDA_ERROR_OUT_OF_MEMORY`,
}, "|"), " ", `(?:[\s>|*#]|\[?rank\s?\d+\]?:)+`) + `)`)

// find lists the places [from, to) of anchors in text, in order. Every anchor
// has one of a few words in it; only around those does it try the patterns,
// because a log is long and mostly about something else.
func find(text string) [][2]int {
	lower := []byte(text)
	for i, c := range lower {
		if c >= 'A' && c <= 'Z' {
			lower[i] = c + ('a' - 'A')
		}
	}
	words := []string{"memory", "allocat", "exhausted", "bad_alloc"}
	next := make([]int, len(words)) // place of each word's next occurrence
	for k := range words {
		next[k] = -1
	}
	const before, after = 160, 200
	var places [][2]int
	for at := 0; len(places) < maxPlaces; {
		hit := len(text)
		for k, w := range words {
			if next[k] < at && next[k] < len(text) {
				if j := bytes.Index(lower[at:], []byte(w)); j >= 0 {
					next[k] = at + j
				} else {
					next[k] = len(text)
				}
			}
			hit = min(hit, next[k])
		}
		if hit == len(text) {
			break
		}
		floor := 0
		if len(places) > 0 {
			floor = places[len(places)-1][1]
		}
		at = hit + 1
		if !promising(lower, hit) {
			continue
		}
		from := max(floor, hit-before)
		window := text[from:min(len(text), hit+after)]
		for skip := 0; skip < len(window); {
			loc := anchors.FindStringIndex(window[skip:])
			if loc == nil || from+skip+loc[0] > hit {
				break
			}
			if from+skip+loc[1] > hit {
				places = append(places, [2]int{from + skip + loc[0], from + skip + loc[1]})
				at = from + skip + loc[1]
				break
			}
			skip += loc[1]
		}
	}
	return places
}

// promising reports whether the word before hit, or what is joined to it, can
// be part of an anchor.
func promising(lower []byte, hit int) bool {
	end := hit
	for end > 0 && hit-end < 40 && !('a' <= lower[end-1] && lower[end-1] <= 'z' || lower[end-1] >= '0' && lower[end-1] <= '9') {
		end--
	}
	before := lower[max(0, end-12):end]
	for _, w := range []string{"of", "allowed", "to", "when", "memory", "error", "resource", "std", "alloc"} {
		if bytes.HasSuffix(before, []byte(w)) {
			return true
		}
	}
	// "Allocation on device", "Allocator (GPU_0_bfc)" begin a message.
	return bytes.HasPrefix(lower[hit:], []byte("allocat"))
}

var (
	ansi      = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)
	lineStart = regexp.MustCompile(`^(?:[\s>|*#]|\[?rank ?\d+\]?:|\(\w[\w ]*pid=\d+(?:, ip=[\d.]+)?\)|\[\d+\]:)*`)
)

// Parse finds the first out-of-memory message with numbers in text, which may
// be a whole log, and reads it. The error is ErrNoMessage.
func Parse(text string) (Message, error) {
	if len(text) > maxText {
		text = text[:maxText]
	}
	places := find(text)
	if places == nil {
		return Message{}, ErrNoMessage
	}
	best := Message{GPU: -1}
	found := false
	jax := strings.Contains(text, "jax") || strings.Contains(text, "xla_extension")
	seen := map[string]bool{}
	for i := 0; i < len(places); i++ {
		// A wording often holds a second anchor ("RESOURCE_EXHAUSTED: Out of
		// memory while trying to allocate"), and a log several messages: a
		// message ends before the next anchor that repeats its first one.
		from := places[i][0]
		end := min(len(text), from+maxMessage)
		first := text[from:min(len(text), from+8)]
		for _, next := range places[i+1:] {
			if next[0] >= end {
				break
			}
			if strings.EqualFold(text[next[0]:min(len(text), next[0]+len(first))], first) {
				end = next[0]
				break
			}
		}
		flat := flatten(text[from:end])
		m, used := read(flat)
		if m.Framework == TensorFlow && jax {
			m.Framework = JAX
		}
		if m.Framework == TensorFlow || m.Framework == JAX {
			m.bfcStats(text[end:])
		}
		m.Offset, m.Length = from, min(end-from, sourceLength(text[from:end], used))
		if m.Requested.Known || m.Allocated.Known {
			key := flat[:min(used, len(flat))]
			seen[key] = true
			if !found {
				best, found = m, true
			} else if len(seen) > maxSeen {
				break
			}
		} else if !found && best.Framework == "" {
			best = m
		}
		// Go on behind this message.
		for i+1 < len(places) && places[i+1][0] < from+m.Length {
			i++
		}
	}
	best.Count = max(1, len(seen))
	return best, nil
}

// flatten makes one line of a message: escape sequences and the marks that
// terminals, quotes and launchers put at the start of lines are dropped, white
// space is joined.
func flatten(s string) string {
	s = ansi.ReplaceAllString(s, "")
	s = strings.NewReplacer("\r", "\n", "\u00a0", " ", "&gt;", ">", "\\n", "\n", "`", "", "**", "").Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = l[len(lineStart.FindString(l)):]
	}
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

// sourceLength is the length of the part of s that flattens to used bytes,
// about.
func sourceLength(s string, used int) int {
	n := 0
	for i, r := range s {
		if n >= used {
			return i
		}
		if r > ' ' {
			n += utf8.RuneLen(r)
		} else if i > 0 && s[i-1] > ' ' {
			n++
		}
	}
	return len(s)
}

// size matches a number with a unit; [G]iB and [G]B are the same here, because
// every framework but Apple's counts in powers of 1024.
const size = `([0-9][0-9,]*(?: ?\.[0-9]+)?) ?(bytes?\b|[KMGT]i?B\b|[KMGT]\b|B\b)`

var (
	reTotal       = regexp.MustCompile(size + ` total capacity|total capac(?:i?t|it)y of ` + size)
	reFree        = regexp.MustCompile(`of which ` + size + ` is free|; ?` + size + ` free`)
	reAllocated   = regexp.MustCompile(size + ` already(?: allocated)?|Of the allocated memory ` + size + ` is allocated`)
	reReserved    = regexp.MustCompile(size + ` reserved in total`)
	reCached      = regexp.MustCompile(size + ` cached`)
	reUnallocated = regexp.MustCompile(size + ` is reserved by PyTorch but unallocated`)
	rePrivate     = regexp.MustCompile(`with ` + size + ` allocated in private pools`)
	reAllowed     = regexp.MustCompile(size + ` allowed`)
	reProcess     = regexp.MustCompile(`this process has ` + size + ` memory in use`)
	reOther       = regexp.MustCompile(`Process ([0-9]+) has ` + size + ` memory in use`)
	reGPU         = regexp.MustCompile(`\(GPU ([0-9]+)|GPU ([0-9]+) has a total|[Aa]llocation on device ([0-9]+)|device ordinal ([0-9]+)|device:GPU:([0-9]+)|GPU_([0-9]+)_bfc`)
	reTried       = regexp.MustCompile(`(?i)(?:tried|trying) to allocate (?:` + size + `|more than 1EB)`)

	reAsyncAllocated = regexp.MustCompile(`Currently allocated ?: ?` + size)
	reAsyncRequested = regexp.MustCompile(`Requested ?: ?` + size)
	reAsyncTotal     = regexp.MustCompile(`Device limit ?: ?` + size)
	reAsyncFree      = regexp.MustCompile(`Free \(according to CUDA\) ?: ?` + size)
	reAsyncAllowed   = regexp.MustCompile(`PyTorch limit \(set by user-supplied memory fraction\) ?: ?` + size)

	reMPS = regexp.MustCompile(`MPS allocated: ` + size + `, other allocations: ` + size + `, max allowed: ` + size)

	reExactRequest = regexp.MustCompile(`(?:Failed to allocate request for|failed to allocate) [0-9.]+ ?[KMGT]?i?B? \(([0-9]+) ?(bytes|B)\)|rounded to ([0-9]+)\)|cuMemAllocAsync failed to allocate ([0-9]+) bytes|failed to allocate ([0-9]+) bytes`)
	reLimit        = regexp.MustCompile(`Limit: *([0-9]+)\b`)
	reInUse        = regexp.MustCompile(`\bInUse: *([0-9]+)\b`)
	reRegions      = regexp.MustCompile(`total_region_allocated_bytes_: ?([0-9]+)`)
	reMemoryLimit  = regexp.MustCompile(`memory_limit_: ?([0-9]+)`)
	reLargest      = regexp.MustCompile(`LargestFreeBlock: *([0-9]+)`)
	reFreeTotal    = regexp.MustCompile(`Free memory/Total memory: ?([0-9]+)/([0-9]+)`)
	reShape        = regexp.MustCompile(`with shape ?\[([0-9,]*)\](?: and type ([a-z0-9_]+))?`)
	reCuPy         = regexp.MustCompile(`Out of memory allocating ([0-9,]+) bytes \(allocated so far: ([0-9,]+) bytes(?:, limit set to: ([0-9,]+) bytes)?|out of memory to allocate ([0-9]+) bytes \(total ([0-9]+) bytes(?:, limit set to ([0-9]+) bytes)?`)
)

// typeBytes is the size of TensorFlow's element types.
var typeBytes = map[string]int64{
	"float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8, "int32": 4, "int64": 8,
	"uint8": 1, "int8": 1, "bool": 1, "int16": 2, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16,
}

// read reads a flattened message and says how much of it belongs to it.
func read(s string) (m Message, used int) {
	m = Message{GPU: -1, Framework: classify(s)}
	used = min(len(s), 40)
	match := func(re *regexp.Regexp) []string {
		loc := re.FindStringSubmatchIndex(s)
		if loc == nil {
			return nil
		}
		used = max(used, loc[1])
		groups := make([]string, len(loc)/2)
		for i := range groups {
			if loc[2*i] >= 0 {
				groups[i] = s[loc[2*i]:loc[2*i+1]]
			}
		}
		return groups
	}
	// quantity is the first pair of groups (number, unit) that took part.
	quantity := func(re *regexp.Regexp) Quantity {
		g := match(re)
		for i := 1; i+1 < len(g); i += 2 {
			if g[i] != "" {
				return parseSize(g[i], g[i+1])
			}
		}
		return Quantity{}
	}
	whole := func(s string) Quantity {
		n, err := strconv.ParseInt(strings.ReplaceAll(s, ",", ""), 10, 64)
		return Quantity{Bytes: n, Known: err == nil}
	}
	first := func(g []string) Quantity {
		for i := 1; i < len(g); i++ {
			if g[i] != "" && g[i] != "bytes" && g[i] != "B" {
				return whole(g[i])
			}
		}
		return Quantity{}
	}
	if g := match(reGPU); g != nil {
		if q := first(g); q.Known && q.Bytes < 1<<16 {
			m.GPU = int(q.Bytes)
		}
	}
	if g := match(reTried); g != nil {
		if g[1] != "" {
			m.Requested = parseSize(g[1], g[2])
		} else {
			m.Requested = Exact(1 << 60)
		}
	}
	switch m.Framework {
	case PyTorch:
		m.ROCm = strings.Contains(s[:min(len(s), 40)], "HIP")
		m.Total = quantity(reTotal)
		m.Free = quantity(reFree)
		m.Allocated = quantity(reAllocated)
		m.Reserved = quantity(reReserved)
		m.Unallocated = quantity(reUnallocated)
		m.PrivatePools = quantity(rePrivate)
		m.Allowed = quantity(reAllowed)
		m.Process = quantity(reProcess)
		for _, g := range reOther.FindAllStringSubmatch(s, 256) {
			if pid, err := strconv.ParseInt(g[1], 10, 64); err == nil {
				m.Others = append(m.Others, Process{pid, parseSize(g[2], g[3])})
			}
		}
		old := strings.Contains(s, "(GPU ")
		// Until 1.3 "cached" meant what is held but not allocated.
		if cached := quantity(reCached); cached.Known {
			m.Unallocated, m.Before14 = cached, true
		}
		m.Before21 = old
		complete := m.Total.Known && m.Free.Known && m.Allocated.Known && (m.Reserved.Known || m.Unallocated.Known)
		m.Truncated = !complete && !strings.Contains(s, "more than 1EB")
	case PyTorchAsync:
		m.Allocated = quantity(reAsyncAllocated)
		m.Requested = quantity(reAsyncRequested)
		m.Total = quantity(reAsyncTotal)
		m.Free = quantity(reAsyncFree)
		// The largest number stands for no limit.
		if limit := quantity(reAsyncAllowed); limit.Known && limit.Bytes < math.MaxInt64 {
			m.Allowed = limit
		}
		m.Truncated = !m.Total.Known || !m.Allocated.Known || !m.Requested.Known
	case PyTorchMPS:
		if g := match(reMPS); g != nil {
			m.Allocated = parseSize(g[1], g[2])
			m.Process = m.Allocated.plus(parseSize(g[3], g[4]))
			m.Allowed = parseSize(g[5], g[6])
		}
		m.Truncated = !m.Allowed.Known
	case JAX, TensorFlow:
		if q := first(match(reExactRequest)); q.Known {
			m.Requested = q
		}
		if g := match(reShape); g != nil && !m.Requested.Known {
			m.Requested = tensorBytes(g[1], g[2])
		}
		m.Reserved = first(match(reRegions))
		m.Allowed = first(match(reMemoryLimit))
		m.LargestFree = first(match(reLargest))
		limit, inUse := first(match(reLimit)), first(match(reInUse))
		if limit.Known && limit.Bytes > 0 {
			m.Allowed = limit
		}
		if inUse.Known {
			m.Allocated = inUse
		}
		if g := match(reFreeTotal); g != nil {
			m.Free, m.Total = whole(g[1]), whole(g[2])
		}
		if m.LargestFree.Known && m.LargestFree.Bytes == 0 {
			m.LargestFree = Quantity{} // not kept by this allocator
		}
	case CuPy:
		if g := match(reCuPy); g != nil {
			at := 1
			if g[1] == "" {
				at = 4
			}
			m.Requested, m.Allocated = whole(g[at]), whole(g[at+1])
			if g[at+2] != "" {
				m.Allowed = whole(g[at+2])
			}
		}
	case RMM:
		m.PoolFull = strings.Contains(s, "Maximum pool size exceeded") || strings.Contains(s, "maximum pool size exceeded")
	case CUDA:
		if q := first(match(reExactRequest)); q.Known {
			m.Requested = q
		}
	}
	m.complete()
	return m, used
}

var bfcStats = regexp.MustCompile(`Stats:[^0-9]{0,200}?Limit: *([0-9]+)\s+InUse: *([0-9]+)`)

// bfcStats reads the allocator's own counters, which TensorFlow and XLA print
// behind a table of all chunks, from the rest of the log.
func (m *Message) bfcStats(rest string) {
	if m.Allocated.Known || m.Allowed.Known {
		return
	}
	const far = 8 << 20
	g := bfcStats.FindStringSubmatch(rest[:min(len(rest), far)])
	if g == nil {
		return
	}
	limit, err1 := strconv.ParseInt(g[1], 10, 64)
	inUse, err2 := strconv.ParseInt(g[2], 10, 64)
	if err1 == nil && err2 == nil && limit > 0 {
		m.Allowed, m.Allocated = Exact(limit), Exact(inUse)
	}
}

// complete fills in what follows from the other numbers.
func (m *Message) complete() {
	switch {
	case !m.Reserved.Known:
		m.Reserved = m.Allocated.plus(m.Unallocated)
	case !m.Unallocated.Known:
		m.Unallocated = m.Reserved.minus(m.Allocated)
	case !m.Allocated.Known:
		m.Allocated = m.Reserved.minus(m.Unallocated)
	}
	if m.Unallocated.Bytes < 0 { // rounding
		m.Unallocated.Bytes = 0
	}
}

// classify says whose message s is.
func classify(s string) Framework {
	has := func(subs ...string) bool {
		return slices.ContainsFunc(subs, func(sub string) bool { return strings.Contains(s, sub) })
	}
	start := s[:min(len(s), 200)]
	startHas := func(subs ...string) bool {
		return slices.ContainsFunc(subs, func(sub string) bool { return strings.Contains(start, sub) })
	}
	switch {
	case startHas("MPS backend out of memory"):
		return PyTorchMPS
	case startHas("would exceed allowed memory"):
		return PyTorchAsync
	case startHas("Tried to allocate", "tried to allocate") && !startHas("you tried to allocate"):
		return PyTorch
	case startHas("you tried to allocate"):
		return Host
	case startHas("RMM", "rmm"):
		return RMM
	case startHas("Out of memory allocating", "out of memory to allocate"):
		return CuPy
	case startHas("OOM when allocating tensor", "ran out of memory trying to allocate") && has("_bfc", "allocator", "tensor"):
		return TensorFlow
	case startHas("RESOURCE_EXHAUSTED", "Resource exhausted", "RESOURCE EXHAUSTED", "Out of memory while trying", "Failed to allocate request", "ran out of memory"):
		return JAX
	}
	return CUDA
}

// tensorBytes is the size of a tensor from its printed shape and type; unknown
// without a type.
func tensorBytes(shape, typ string) Quantity {
	n, ok := typeBytes[typ]
	if !ok {
		return Quantity{}
	}
	for _, d := range strings.Split(shape, ",") {
		if d == "" {
			continue
		}
		x, err := strconv.ParseInt(d, 10, 64)
		if err != nil || x < 0 || x != 0 && n > math.MaxInt64/x {
			return Quantity{}
		}
		n *= x
	}
	return Exact(n)
}

var unitBytes = map[byte]float64{'K': bytesize.KiB, 'M': bytesize.MiB, 'G': bytesize.GiB, 'T': bytesize.TiB}

// parseSize reads a matched number and unit. Commas group thousands; a comma
// before the last one or two digits is a decimal comma.
func parseSize(number, unit string) Quantity {
	number = strings.ReplaceAll(number, " ", "")
	if i := strings.LastIndexByte(number, ','); i >= 0 && !strings.Contains(number, ".") && len(number)-i-1 <= 2 {
		number = number[:i] + "." + number[i+1:]
	}
	number = strings.ReplaceAll(number, ",", "")
	x, err := strconv.ParseFloat(number, 64)
	factor, scaled := unitBytes[unit[0]]
	if !scaled {
		factor = 1
	}
	x *= factor
	if err != nil || x < 0 {
		return Quantity{}
	}
	if x >= math.MaxInt64 {
		return Exact(math.MaxInt64)
	}
	q := Quantity{Bytes: int64(math.Round(x)), Known: true}
	if scaled {
		decimals := 0
		if i := strings.IndexByte(number, '.'); i >= 0 {
			decimals = len(number) - i - 1
		}
		q.Rounding = int64(math.Ceil(factor / 2 / math.Pow10(min(decimals, 18))))
	}
	return q
}
