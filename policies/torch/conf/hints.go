package conf

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"allocsim/internal/edit"
)

// assignment finds the start of a value in a pasted shell, batch, PowerShell,
// Dockerfile, YAML or Python line.
var assignment = regexp.MustCompile(`PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF["'\])}]*(?:\s*[=:,]=?|\s)\s*`)

// closingQuote is the mark that ends a text that opens with the key.
var closingQuote = map[rune]rune{'"': '"', '\'': '\'', '`': '`', '“': '”', '‘': '’', '„': '“', '«': '»'}

// unwrap finds the value proper in [lo, hi): it takes off white space, a whole
// assignment around it, quotes and braces, and reports them.
func (p *parser) unwrap(lo, hi int) (int, int) {
	s := p.trim(span{lo, hi})
	if unexpanded.MatchString(p.text(s)) {
		return s.lo, s.hi
	}
	if ms := assignment.FindAllStringIndex(p.text(s), -1); ms != nil {
		m := ms[len(ms)-1]
		value := span{s.lo + m[1], s.hi}
		value = p.endOfAssignment(value)
		if before := s.lo + m[0] - 1; before >= s.lo && strings.IndexByte(`"'`, p.src[before]) >= 0 {
			// set "NAME=VALUE": the quotes enclose the whole assignment.
			if i := strings.IndexByte(p.text(value), p.src[before]); i > 0 {
				value = p.trim(span{value.lo, value.lo + i})
			}
		}
		p.errorf(span{s.lo, value.lo}, "give only what follows the '=': "+p.text(p.unquoted(value)), "this is a whole assignment, not the value")
		if len(ms) > 1 {
			p.warnf(span{s.lo + ms[0][0], s.lo + ms[0][1]}, "join the options with commas in one assignment", "the variable is assigned %d times; only the last one counts", len(ms))
		}
		s = value
		before := strings.TrimSpace(p.src[lo : s.lo-(m[1]-m[0])])
		p.shell = (before == "" || before == "export") && strings.HasSuffix(strings.TrimSpace(p.src[:s.lo]), "=")
		if q := p.unquoted(s); q != s {
			p.blanks(q.lo, q.hi)
			p.shell = false
			return q.lo, q.hi // the quotes belong to the assignment
		}
		lo, hi = s.lo, s.hi
	}
	p.blanks(lo, hi)
	if q := p.unquoted(s); q != s {
		what := "the quotes are part of the value"
		if p.src[s.lo] == '{' {
			what = "the braces are part of the value"
		}
		p.errorf(span{s.lo, q.lo}, "leave them out; in a Windows batch file write set \"PYTORCH_CUDA_ALLOC_CONF=KEY:VALUE\"", "%s", what)
		s = q
	}
	if n := len("\ufeff"); strings.HasPrefix(p.text(s), "\ufeff") {
		p.errorf(span{s.lo, s.lo + n}, "save the file without it", "an invisible byte order mark stands before the value")
		s = p.trim(span{s.lo + n, s.hi})
	}
	return s.lo, s.hi
}

// blanks reports white space in [lo, hi) that the release does not drop.
func (p *parser) blanks(lo, hi int) {
	for i, r := range p.src[lo:hi] {
		if !unicode.IsSpace(r) || r == ' ' || p.v.sharedParser() && r >= '\t' && r <= '\r' {
			continue
		}
		at := span{lo + i, lo + i + utf8.RuneLen(r)}
		p.errorf(at, "use plain blanks, or none", "the white space %+q is not dropped by PyTorch %s", r, p.v)
		return
	}
}

// unquoted takes one pair of quotes or braces off a span that they enclose, or
// a single quote that was left over at its start or end.
func (p *parser) unquoted(s span) span {
	t := p.text(s)
	r, n := utf8.DecodeRuneInString(t)
	if t == "" {
		return s
	}
	if r == '{' && strings.HasSuffix(t, "}") {
		return p.trim(span{s.lo + 1, s.hi - 1})
	}
	last, m := utf8.DecodeLastRuneInString(t)
	if c, ok := closingQuote[r]; ok {
		inner := t[n:]
		if last == c && len(inner) >= m && !strings.ContainsRune(inner[:len(inner)-m], r) {
			return p.trim(span{s.lo + n, s.hi - m})
		}
		if !strings.ContainsRune(inner, c) {
			return p.trim(span{s.lo + n, s.hi})
		}
	}
	return s
}

// endOfAssignment cuts off what follows the value on a pasted line: a command,
// the end of a Python call, further lines.
func (p *parser) endOfAssignment(s span) span {
	t := p.text(s)
	r, n := utf8.DecodeRuneInString(t)
	if c, ok := closingQuote[r]; ok {
		if i := strings.IndexRune(t[n:], c); i >= 0 {
			return span{s.lo, s.lo + n + i + utf8.RuneLen(c)}
		}
	}
	for _, stop := range []string{"\n", "\r", "&&", " #"} {
		if i := strings.Index(t, stop); i >= 0 {
			t = t[:i]
		}
	}
	// An unquoted value ends at the first blank, unless more options follow.
	if i := strings.IndexFunc(t, unicode.IsSpace); i >= 0 && !strings.ContainsAny(t[i:], ":=,") {
		t = t[:i]
	} else if i >= 0 && !strings.HasSuffix(strings.TrimSpace(t[:i]), ":") && !strings.HasSuffix(strings.TrimSpace(t[:i]), ",") {
		rest := strings.TrimSpace(t[i:])
		if p.keyAt(s.lo+strings.Index(t, rest), s.lo+len(t)) == "" {
			t = t[:i]
		}
	}
	return p.trim(span{s.lo, s.lo + len(t)})
}

var (
	drivePath  = regexp.MustCompile(`^[A-Za-z]:[\\/]`)
	unexpanded = regexp.MustCompile(`^["']?(?:\$\{?\w+\}?|%\w+%|\$\(.*\))["']?$`)
	fileName   = regexp.MustCompile(`(?i)\.(?:so(?:\.[0-9.]+)?|dll|dylib|exe|json|ya?ml|toml|ini|cfg|conf|txt|py|sh|bat)$`)
)

// notAConfig reports a text that is something else altogether.
func (p *parser) notAConfig(lo, hi int) bool {
	s := p.trim(span{lo, hi})
	t := p.text(s)
	path := drivePath.MatchString(t) || strings.HasPrefix(t, "/") || strings.HasPrefix(t, "~/") || strings.HasPrefix(t, "./") ||
		strings.HasPrefix(t, "../") || strings.HasPrefix(t, `\\`) || strings.Contains(t, "://") || fileName.MatchString(t) && !strings.ContainsAny(t, ":=")
	switch {
	case path:
		p.errorf(s, "give the options themselves, such as expandable_segments:True", "%s looks like a path, not like options", quote(t))
	case strings.ContainsRune(t, 0):
		p.errorf(s, "give the options themselves, such as expandable_segments:True", "the value contains a zero byte; an environment variable cannot")
	case !utf8.ValidString(t):
		p.errorf(s, "type the value again", "the value is not valid UTF-8")
	case unexpanded.MatchString(t):
		p.errorf(s, "check the quotes around it: single quotes keep a shell from expanding", "%s is a variable that the shell did not expand", quote(t))
	default:
		return false
	}
	p.fixable = false
	return true
}

// misspelt maps names that guides and forum posts use to the real ones, where
// the edit distance alone would not find them.
var misspelt = map[string]string{
	"max_split":                        "max_split_size_mb",
	"max_split_mb":                     "max_split_size_mb",
	"max_split_size":                   "max_split_size_mb",
	"split_size":                       "max_split_size_mb",
	"split_size_mb":                    "max_split_size_mb",
	"max_block_size_mb":                "max_split_size_mb",
	"gc_threshold":                     "garbage_collection_threshold",
	"gc":                               "garbage_collection_threshold",
	"garbage_collect_threshold":        "garbage_collection_threshold",
	"garbage_collection":               "garbage_collection_threshold",
	"expandable":                       "expandable_segments",
	"expandable_segment":               "expandable_segments",
	"expendable_segments":              "expandable_segments",
	"use_expandable_segments":          "expandable_segments",
	"roundup":                          "roundup_power2_divisions",
	"roundup_power2":                   "roundup_power2_divisions",
	"round_up_power2_divisions":        "roundup_power2_divisions",
	"allocator":                        "backend",
	"allocator_backend":                "backend",
	"memory_fraction":                  "per_process_memory_fraction",
	"fraction":                         "per_process_memory_fraction",
	"set_per_process_memory_fraction":  "per_process_memory_fraction",
	"large_segment_size":               "large_segment_size_mb",
	"large_segment_mb":                 "large_segment_size_mb",
	"max_non_split_rounding_size":      "max_non_split_rounding_mb",
	"max_non_split_rounding_size_mb":   "max_non_split_rounding_mb",
	"garbage_collection_threshold_mb":  "garbage_collection_threshold",
	"release_lock":                     "release_lock_on_cudamalloc",
	"pinned_num_threads":               "pinned_num_register_threads",
	"pinned_use_host_register":         "pinned_use_cuda_host_register",
	"pinned_reserve_segment_size":      "pinned_reserve_segment_size_mb",
	"graph_capture_recordstream_reuse": "graph_capture_record_stream_reuse",
}

func (p *parser) resembles(raw string) bool {
	k, _ := p.near(raw)
	return k != nil
}

// near is the one real key that a name is close to, or nil; sure says whether
// it is close enough to take its place without asking.
func (p *parser) near(raw string) (k *Key, sure bool) {
	name := strings.ToLower(p.unquote(raw))
	name = strings.Map(func(r rune) rune {
		switch {
		case r == '-' || r == ' ' || r == '.':
			return '_'
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, name)
	name = strings.TrimPrefix(name, "torch_")
	if len(name) > 64 {
		return nil, false
	}
	if to, ok := misspelt[name]; ok {
		return lookup(to), true
	}
	var best *Key
	least, ties := 1+max(2, len(name)/5), 0
	for i := range keys {
		k := &keys[i]
		if k.Alias != "" && name != k.Name {
			continue
		}
		switch d := edit.Distance(name, k.Name); {
		case d < least:
			best, least, ties = k, d, 0
		case d == least:
			ties++
		}
	}
	if best != nil && ties == 0 {
		return best, true
	}
	// A long common beginning is worth a question.
	const beginning = 9
	if best = nil; len(name) >= beginning {
		for i := range keys {
			if strings.HasPrefix(keys[i].Name, name[:beginning]) {
				if best != nil {
					return nil, false
				}
				best = &keys[i]
			}
		}
	}
	return best, false
}

// combinations warns about options that defeat each other (cases R02, R11,
// R24).
func (p *parser) combinations() {
	c, d := p.cfg, Default(p.v)
	at := func(key string) (span, bool) { s, ok := p.set[key]; return s, ok }
	if c.Backend == CudaMallocAsync {
		backend, _ := at("backend")
		for _, k := range keys {
			s, ok := at(k.Name)
			if !ok || !k.Native || k.Name == "per_process_memory_fraction" || k.Alias != "" {
				continue
			}
			said := "PyTorch does not say so"
			if cudaOnly := k.Name == "release_lock_on_cudamalloc" || k.Name == "graph_capture_record_stream_reuse"; cudaOnly || !p.v.sharedParser() {
				said = "PyTorch only warns"
			}
			p.warnf(s, "leave it out, or use backend:native", "backend:cudaMallocAsync ignores %s; %s", k.Name, said)
		}
		p.warnf(backend, "use the native backend to record", "backend:cudaMallocAsync has no memory snapshots")
		return
	}
	split, hasSplit := at("max_split_size_mb")
	unlimited := c.MaxSplitSize == Unlimited
	if c.ExpandableSegments && hasSplit && !unlimited {
		p.warnf(split, "leave max_split_size_mb out; expandable segments do not need it", "together with expandable_segments memory can grow without bound: large free ranges become unusable (pytorch/pytorch#123548)")
	}
	if s, ok := at("max_non_split_rounding_mb"); ok && unlimited && c.MaxNonSplitRounding != d.MaxNonSplitRounding {
		p.warnf(s, "set max_split_size_mb too, or leave it out", "max_non_split_rounding_mb does nothing without max_split_size_mb")
	}
	if s, ok := at("garbage_collection_threshold"); ok && c.GCThreshold > 0 {
		_, hasFraction := at("per_process_memory_fraction")
		switch {
		case c.ExpandableSegments && p.v.AtLeast(2, 5):
			p.warnf(s, "leave it out; expandable segments do not need it", "with expandable_segments there is next to nothing to collect: garbage collection skips expandable memory")
		case hasFraction && c.PerProcessMemoryFraction < 1:
		case hasFraction:
			p.warnf(s, "give a fraction below 1.0", "garbage collection never runs: a per_process_memory_fraction of 1.0 is no limit")
		case p.v.Rules().FractionOneLimits:
			p.warnf(s, "call torch.cuda.set_per_process_memory_fraction(1.0), or with less", "garbage collection never runs unless the program sets a memory fraction (pytorch/pytorch#106660)")
		default:
			p.warnf(s, "add per_process_memory_fraction:0.95, or call torch.cuda.set_per_process_memory_fraction with less than 1.0", "garbage collection never runs unless a memory fraction below 1.0 is set (pytorch/pytorch#106660)")
		}
	}
	if s, ok := at("large_segment_size_mb"); ok && c.ExpandableSegments && c.LargeSegmentSize%(2*mib) != 0 {
		p.warnf(s, "give an even number", "with expandable_segments the segment size is the page, and the driver maps multiples of 2 MiB only")
	}
	if s, ok := at("pinned_num_register_threads"); ok && c.PinnedNumRegisterThreads > 1 && !c.PinnedUseCudaHostRegister {
		p.warnf(s, "add pinned_use_cuda_host_register:True", "pinned_num_register_threads does nothing without pinned_use_cuda_host_register")
	}
	if c.RoundupBypassThreshold > 0 && c.Roundup == d.Roundup {
		s, _ := at("roundup_bypass_threshold_mb")
		p.warnf(s, "set roundup_power2_divisions too, or leave it out", "roundup_bypass_threshold_mb does nothing without roundup_power2_divisions")
	}
	if c.ExpandableSegments {
		p.notes = append(p.notes, "expandable segments do not work with everything that takes memory in its own way: classic CUDA IPC, vLLM's sleep mode, torch_memory_saver, pluggable allocators; nor on platforms without the driver API, where PyTorch warns once and leaves them off.")
	}
}
