package conf

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"allocsim/internal/text"
)

// Problem is one error or warning about a string.
type Problem struct {
	// Offset is the byte offset of the fault in the string as it was given,
	// Length the bytes it spans; 0 where something is missing.
	Offset int `json:"offset"`
	Length int `json:"length"`
	// Message says what is wrong, Hint what to write or do instead.
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// Result is what Parse found.
type Result struct {
	// OK is set when there are no errors.
	OK bool `json:"ok"`
	// Version is the PyTorch release the string was checked for.
	Version string `json:"version"`
	// Normalized is the shortest string with the same meaning; empty when not
	// OK, or when the string only sets defaults.
	Normalized string    `json:"normalized"`
	Errors     []Problem `json:"errors"`
	Warnings   []Problem `json:"warnings"`
	// Since is the smallest release that takes the string, such as "2.1";
	// empty when none does.
	Since string `json:"since"`
	// Fixable is set when every error has an obvious repair. Fixed is then the
	// repaired string, OK for the same release; it may be empty, which is to
	// leave the variable unset.
	Fixable bool   `json:"fixable"`
	Fixed   string `json:"fixed"`
	// PyTorchError is the exception that PyTorch itself raises for the string.
	// It is empty when PyTorch takes it, which it also does with many strings
	// that Parse rejects.
	PyTorchError string `json:"pytorch_error,omitempty"`
	// Notes are worth knowing but no fault of the string.
	Notes []string `json:"notes,omitempty"`
	// Options are the options set, in the order of the string, as Explain
	// needs them.
	Options []Option `json:"options,omitempty"`
}

// Option is one option that a string sets.
type Option struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// Since is the first release that takes this key with this value.
	Since string `json:"since"`
}

// Parse reads s strictly, for PyTorch release v (the zero Version is Latest).
// A value that PyTorch misreads, or a separator that it ignores, is an error;
// what it reads as it was meant, but only by leniency, is a warning, and so is
// a combination that does nothing or does harm. The Config is that of the parts
// without errors.
//
// When the Result is OK, ParseLenient gives the same Config.
func Parse(s string, v Version) (Config, Result) {
	return parse(s, v.orLatest(), true)
}

// Check says whether release v takes a configuration, which options it sets
// and what is doubtful about them, as Parse does for its normal form.
func Check(c Config, v Version) Result {
	_, res := Parse(c.Format(v), v)
	return res
}

func parse(s string, v Version, repair bool) (Config, Result) {
	p := &parser{src: s, v: v, cfg: Default(v), since: oldest, fixable: true}
	lo, hi := p.unwrap(0, len(s))
	if !p.notAConfig(lo, hi) {
		parts := p.split(lo, hi)
		parts = p.join(parts)
		p.apply(parts)
		p.combinations()
	}
	return p.finish(repair)
}

type parser struct {
	src      string
	v        Version
	cfg      Config
	errors   []Problem
	warnings []Problem
	notes    []string
	options  []Option
	set      map[string]span // keys that took effect, with their place
	since    Version         // smallest release that takes what was read
	until    Version         // largest one; zero = any
	wrong    bool            // some error is not about the release
	fixable  bool            // every error so far has a repair
	fixed    []string        // repaired parts
	shell    bool            // the value stands unquoted in a line for a shell
}

// span is a range of bytes of the source.
type span struct{ lo, hi int }

func (p *parser) text(s span) string { return p.src[s.lo:s.hi] }

// trim narrows a span to its first and last character that is not white space.
func (p *parser) trim(s span) span {
	t := p.text(s)
	left := strings.TrimLeftFunc(t, unicode.IsSpace)
	s.lo += len(t) - len(left)
	s.hi = s.lo + len(strings.TrimRightFunc(left, unicode.IsSpace))
	return s
}

func (p *parser) errorf(at span, hint, format string, args ...any) {
	p.wrong = true
	p.errors = append(p.errors, problem(at, hint, format, args))
}

func (p *parser) warnf(at span, hint, format string, args ...any) {
	p.warnings = append(p.warnings, problem(at, hint, format, args))
}

// problem is a Problem whose texts, which quote the source, are valid UTF-8.
func problem(at span, hint, format string, args []any) Problem {
	valid := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
	return Problem{at.lo, at.hi - at.lo, valid(fmt.Sprintf(format, args...)), valid(hint)}
}

// part is one KEY:VALUE.
type part struct {
	span
	key   span // without quotes
	sep   span // empty when missing
	value span
	list  bool // the value opens with a bracket
	// closed is unset for a list whose closing bracket is missing.
	closed  bool
	listEnd int    // behind the list
	bare    bool   // no separator
	meant   string // the value without the comma that cut it; empty = as written
	comma   span   // what ends the part; empty at the end of the string
}

const separators = ":=：＝"

// split cuts [lo, hi) into parts at commas, at what is written in place of
// commas, and where a comma is missing between two options.
func (p *parser) split(lo, hi int) []part {
	var parts []part
	start, sepAt := lo, -1
	var sep span
	var list, closed, stray bool
	listEnd := 0
	add := func(end int, comma span) {
		pt := part{span: p.trim(span{start, end}), comma: comma, list: list, closed: closed, bare: sepAt < 0}
		if pt.bare {
			pt.key = pt.span
		} else {
			pt.key = p.trim(span{pt.lo, sep.lo})
			pt.sep = sep
			pt.value = p.trim(span{sep.hi, pt.hi})
		}
		pt.listEnd = listEnd
		for stray && strings.HasSuffix(p.text(pt.value), "]") && pt.value.hi > listEnd {
			pt.value = p.trim(span{pt.value.lo, pt.value.hi - 1})
		}
		parts = append(parts, pt)
		start, sepAt, list, closed, stray = max(comma.hi, end), -1, false, false, false
	}
	for i := lo; i < hi; {
		r, n := utf8.DecodeRuneInString(p.src[i:hi])
		if sepAt >= 0 {
			if k := p.keyAt(i, hi); k != "" && i > sep.hi {
				at := span{i, i}
				p.errorf(at, "write a comma between options", "',' is missing before %s", k)
				add(i, at)
			}
		}
		switch {
		case strings.ContainsRune(",;，；|", r):
			comma := span{i, i + n}
			switch {
			case r == ';' && p.shell:
				p.errorf(comma, "write ',' between options", "the shell cuts the line at ';': PyTorch gets only %s", quote(p.text(p.trim(span{lo, i}))))
				p.shell = false // the first one does
			case r != ',':
				p.errorf(comma, "write ',' between options", "'%c' where ',' belongs", r)
			}
			add(i, comma)
		case sepAt < 0 && strings.ContainsRune(separators, r):
			sepAt, sep = i, span{i, i + n}
		case sepAt >= 0 && strings.ContainsRune("[({【［", r) && p.trim(span{sep.hi, i}).lo == i:
			list = true
			listEnd = p.listEnd(i, n, hi, &closed)
			n = listEnd - i
		case r == ']':
			p.errorf(span{i, i + n}, "remove it, or open the list with '['", "']' without '['")
			stray = true
		}
		i += n
	}
	add(hi, span{hi, hi})
	return parts
}

// listEnd finds where the list that opens at i (a bracket of n bytes) ends:
// behind its closing bracket or, if that is missing, before the next option.
func (p *parser) listEnd(i, n, hi int, closed *bool) int {
	for j := i + n; j < hi; {
		r, m := utf8.DecodeRuneInString(p.src[j:hi])
		if strings.ContainsRune("])}】］", r) {
			*closed = true
			return j + m
		}
		if p.keyAt(j, hi) != "" {
			hi = j
			break
		}
		j += m
	}
	return i + len(strings.TrimRight(p.src[i:hi], ", \t\r\n"))
}

// keyAt is the option whose name stands at i, followed by a separator or, if
// white space sets it off, by the end of its part.
func (p *parser) keyAt(i, hi int) string {
	if c := p.src[i]; c < 'a' || c > 'z' {
		return ""
	}
	if i > 0 {
		if c := p.src[i-1]; c == '_' || c == '-' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			return ""
		}
	}
	end := i
	for end < hi && (p.src[end] == '_' || p.src[end] >= 'a' && p.src[end] <= 'z' || p.src[end] >= '0' && p.src[end] <= '9') {
		end++
	}
	name := p.src[i:end]
	if lookup(name) == nil && future[name] == (Version{}) {
		return ""
	}
	rest := strings.TrimLeftFunc(p.src[end:hi], unicode.IsSpace)
	r, _ := utf8.DecodeRuneInString(rest)
	alone := (rest == "" || r == ',') && i > 0 && unicode.IsSpace(rune(p.src[i-1]))
	if rest != "" && strings.ContainsRune(separators, r) || alone {
		return name
	}
	return ""
}

// join mends parts that a comma has cut apart: a comma in place of the colon,
// a decimal comma, a list without brackets.
func (p *parser) join(parts []part) []part {
	var out []part
	for i := 0; i < len(parts); i++ {
		pt := parts[i]
		k := p.find(p.text(pt.key))
		if k == nil {
			out = append(out, pt)
			continue
		}
		next := func() *part {
			if i+1 < len(parts) && parts[i+1].lo < parts[i+1].hi {
				return &parts[i+1]
			}
			return nil
		}
		switch n := next(); {
		case pt.bare && n != nil && n.bare && !p.resembles(p.text(n.key)) && pt.lo < pt.hi:
			value := p.text(n.span)
			p.errorf(pt.comma, "write "+k.Name+":"+value, "',' where ':' belongs, between %s and its value", k.Name)
			pt.bare, pt.sep, pt.value, pt.hi, pt.comma = false, pt.comma, n.span, n.hi, n.comma
			i++
		case n != nil && n.bare && !pt.bare && k.Type == Fraction && allDigits(p.text(pt.value)) && allDigits(p.text(n.span)):
			p.errorf(pt.comma, "write "+k.Name+":"+p.text(pt.value)+"."+p.text(n.span), "decimal comma: a comma ends the value")
			pt.meant = p.text(pt.value) + "." + p.text(n.span)
			pt.hi, pt.value.hi, pt.comma = n.hi, n.hi, n.comma
			i++
		case n != nil && n.bare && !pt.bare && (k.Type == MiB || k.Type == Count) && len(p.text(pt.value)) <= 3 && allDigits(p.text(pt.value)) && len(p.text(n.span)) == 3 && allDigits(p.text(n.span)):
			p.errorf(pt.comma, "write "+k.Name+":"+p.text(pt.value)+p.text(n.span), "comma inside a number: a comma ends the value")
			pt.meant = p.text(pt.value) + p.text(n.span)
			pt.hi, pt.value.hi, pt.comma = n.hi, n.hi, n.comma
			i++
		case !pt.bare && !pt.list && k.Type == Divisions && strings.ContainsAny(p.text(pt.value), separators):
			end := pt
			for n != nil && !n.bare && (allDigits(p.text(n.key)) || p.text(n.key) == ">") {
				end = *n
				i++
				n = next()
			}
			pt.hi, pt.value.hi, pt.comma = end.hi, end.hi, end.comma
		}
		out = append(out, pt)
	}
	return out
}

func allDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// apply reads every part. large_segment_size_mb comes first, as in PyTorch,
// because the bounds of others depend on it.
func (p *parser) apply(parts []part) {
	p.set = make(map[string]span)
	p.fixed = make([]string, len(parts))
	options := make([]*Option, len(parts))
	empty := len(parts) == 1 && parts[0].lo == parts[0].hi
	for _, first := range []bool{true, false} {
		for i, pt := range parts {
			if first == (p.text(pt.key) == "large_segment_size_mb") && !empty {
				options[i] = p.part(pt, i, i == len(parts)-1)
			}
		}
		if first && p.v.AtLeast(2, 11) {
			p.cfg.MaxNonSplitRounding = p.cfg.LargeSegmentSize
		}
	}
	for _, o := range options {
		if o != nil {
			p.options = append(p.options, *o)
		}
	}
}

// part reads one option and returns it, or nil if it took no effect.
func (p *parser) part(pt part, i int, last bool) *Option {
	if pt.lo == pt.hi {
		if last {
			// The comma before is the last character of the string.
			at := strings.LastIndexAny(p.src[:pt.lo], ",;，；|")
			p.warnf(span{max(at, 0), pt.lo}, "remove it", "trailing comma; PyTorch ignores it")
		} else {
			p.errorf(pt.comma, "remove one comma", "nothing between commas")
		}
		return nil
	}
	raw := p.text(pt.key)
	name := p.unquote(raw)
	k := p.find(raw)
	if pt.bare {
		if !p.dangling(pt, &k) {
			return nil
		}
		// "KEY VALUE": dangling has reported the missing colon.
		fields := strings.Fields(raw)
		pt.value = span{pt.hi - len(fields[1]), pt.hi}
		pt.key = span{pt.lo, pt.lo + len(fields[0])}
		raw, name = fields[0], p.unquote(fields[0])
	}
	if k == nil {
		p.unknown(pt, name, i)
		return nil
	}
	if pt.bare {
		pt.bare = false
	} else if sep := p.text(pt.sep); sep != ":" && sep != "," {
		p.errorf(pt.sep, "write "+k.Name+":"+p.text(pt.value), "'%s' where ':' belongs", sep)
	}
	if quoted := name != raw; quoted {
		p.errorf(pt.key, "write "+k.Name+" without quotes, braces or dashes; in a Windows batch file put the quotes around all of it: set \"PYTORCH_CUDA_ALLOC_CONF="+k.Name+":…\"", "the key is %s with its quotes or dashes", raw)
	} else if raw != k.Name {
		p.warnf(pt.key, "write "+k.Name, "space inside the key %s; PyTorch drops it", k.Name)
	}
	for { // "::", ":="
		r, n := utf8.DecodeRuneInString(p.text(pt.value))
		if n == 0 || !strings.ContainsRune(separators, r) {
			break
		}
		p.errorf(span{pt.value.lo, pt.value.lo + n}, "one ':' is enough", "'%c' after the separator", r)
		pt.value = p.trim(span{pt.value.lo + n, pt.value.hi})
	}
	if pt.value.lo == pt.value.hi {
		p.errorf(span{pt.hi, pt.hi}, "write "+k.example(), "PYTORCH_CUDA_ALLOC_CONF ends before the value of %s", k.Name)
		if !last {
			p.errors[len(p.errors)-1].Message = k.Name + " has no value"
		}
		p.fixable = false
		return nil
	}
	nerr := len(p.errors)
	value, since := p.value(k, pt)
	ok := len(p.errors) == nerr
	if value != "" {
		p.fixed[i] = k.Name + ":" + value
	}
	since = maxVersion(since, k.Since)
	if !k.knownTo(p.v) {
		p.wrongRelease(pt.key, k)
		p.fixed[i] = ""
		ok = false
	} else if since.Compare(p.v) > 0 && ok {
		ok = false
	}
	p.since = maxVersion(p.since, since)
	if k.Until != (Version{}) {
		p.until = k.Until
	}
	if !ok {
		return nil
	}
	if at, twice := p.set[k.Name]; twice {
		if k.Type == Divisions {
			p.warnf(at, "keep one", "%s is set twice; PyTorch applies both, one on top of the other", k.Name)
		} else {
			p.warnf(at, "keep one", "%s is set twice; the last one counts", k.Name)
		}
	}
	if k.Alias != "" {
		p.set[k.Alias] = pt.key
	}
	p.set[k.Name] = pt.key
	return &Option{Key: k.Name, Value: value, Since: since.String()}
}

func maxVersion(a, b Version) Version {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// find is the option that a key means once quotes and white space are off.
func (p *parser) find(raw string) *Key {
	return lookup(strings.Join(strings.Fields(p.unquote(raw)), ""))
}

const quoteMarks = "\"'`“”‘’„«»"

// unquote takes quotes, braces and leading dashes off.
func (p *parser) unquote(s string) string {
	s = strings.TrimSpace(strings.Trim(strings.TrimSpace(s), quoteMarks+"{}()"))
	if strings.HasPrefix(s, "--") {
		s = strings.TrimLeft(s, "-")
	}
	return s
}

// dangling reports a part without separator. It returns true if the part can
// be read as "KEY VALUE", with *k the key.
func (p *parser) dangling(pt part, k **Key) bool {
	raw := p.text(pt.key)
	if *k != nil {
		p.errorf(span{pt.hi, pt.hi}, "write "+(*k).example(), "PYTORCH_CUDA_ALLOC_CONF ends before the value of %s", (*k).Name)
		if pt.comma.lo < pt.comma.hi {
			p.errors[len(p.errors)-1].Message = (*k).Name + " has no value"
		}
		p.fixable = false
		return false
	}
	fields := strings.Fields(raw)
	if len(fields) == 2 {
		if *k = p.find(fields[0]); *k != nil {
			p.errorf(span{pt.lo + len(fields[0]), pt.hi - len(fields[1])}, "write "+(*k).Name+":"+fields[1], "space where ':' belongs")
			return true
		}
	}
	p.fixable = false
	if near, _ := p.near(raw); near != nil {
		p.errorf(pt.key, "did you mean "+near.example()+"?", "%s is no option and has no value", quote(raw))
		return false
	}
	p.errorf(pt.span, "an option is KEY:VALUE, such as expandable_segments:True", "%s is not KEY:VALUE", quote(raw))
	return false
}

// unknown reports a key that no modelled release takes, and repairs it if one
// real key is close.
func (p *parser) unknown(pt part, name string, i int) {
	if since, ok := future[name]; ok {
		p.errorf(pt.key, "leave it out for this release", "%s is a key of PyTorch %s and newer; PyTorch %s stops with an error", name, since, p.v)
		return
	}
	if name == "" {
		p.fixable = false
		p.errorf(span{pt.lo, pt.sep.hi}, "an option is KEY:VALUE, such as expandable_segments:True", "no key before '%s'", p.text(pt.sep))
		return
	}
	near, sure := p.near(name)
	if near == nil {
		p.fixable = false
		p.errorf(pt.key, "known keys: "+strings.Join(p.known(), ", "), "%s is no option of any PyTorch release", quote(name))
		return
	}
	hint := "did you mean " + near.Name + "?"
	if !near.knownTo(p.v) {
		hint = fmt.Sprintf("did you mean %s? PyTorch %s does not take that either (since %s)", near.Name, p.v, near.Since)
	}
	p.errorf(pt.key, hint, "%s is no option of any PyTorch release", quote(name))
	if sep := p.text(pt.sep); sep != ":" {
		p.errorf(pt.sep, "write "+near.Name+":"+p.text(pt.value), "'%s' where ':' belongs", sep)
	}
	// Read the value as the near key's to find its faults and to repair it,
	// but do not let it take effect.
	keep := p.cfg
	value, since := p.value(near, pt)
	p.cfg = keep
	if !sure || value == "" || !near.knownTo(p.v) || since.Compare(p.v) > 0 {
		p.fixable = false
		return
	}
	p.fixed[i] = near.Name + ":" + value
}

// known lists the keys of the release, without ROCm's spellings.
func (p *parser) known() []string {
	var names []string
	for _, k := range keys {
		if k.knownTo(p.v) && k.Alias == "" {
			names = append(names, k.Name)
		}
	}
	return names
}

// wrongRelease reports a real key that this release does not take.
func (p *parser) wrongRelease(at span, k *Key) {
	raises := unrecognized(k.Name, p.v)
	pr := Problem{Offset: at.lo, Length: at.hi - at.lo}
	if p.v.Compare(k.Since) < 0 {
		pr.Message = fmt.Sprintf("%s needs PyTorch %s or newer; %s stops with %q", k.Name, k.Since, p.v, raises)
		pr.Hint = "upgrade PyTorch or leave the option out"
	} else {
		pr.Message = fmt.Sprintf("%s was removed after PyTorch %s; %s stops with %q", k.Name, k.Until, p.v, raises)
		pr.Hint = "leave it out"
		if k.Name == "roundup_bypass_threshold_mb" {
			pr.Hint = "give roundup_power2_divisions a list instead, such as [64:8,>:1]"
		}
	}
	p.errors = append(p.errors, pr)
}

// needs reports a value that only later releases take.
func (p *parser) needs(at span, since Version, format string, args ...any) {
	if p.v.Compare(since) < 0 {
		p.errors = append(p.errors, Problem{at.lo, at.hi - at.lo,
			fmt.Sprintf(format, args...) + fmt.Sprintf(" (PyTorch %s or newer)", since),
			"upgrade PyTorch or write it the older way"})
	}
}

// finish sorts what was found and fills the Result.
func (p *parser) finish(repair bool) (Config, Result) {
	byPlace := func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Length, b.Length), strings.Compare(a.Message, b.Message))
	}
	slices.SortFunc(p.errors, byPlace)
	slices.SortFunc(p.warnings, byPlace)
	r := Result{
		OK:       len(p.errors) == 0,
		Version:  p.v.String(),
		Errors:   append([]Problem{}, p.errors...),
		Warnings: append([]Problem{}, p.warnings...),
		Options:  p.options,
	}
	if !p.wrong && (p.until == Version{} || p.since.Compare(p.until) <= 0) {
		r.Since = p.since.String()
	}
	lenient, err := ParseLenient(p.src, p.v)
	if err != nil {
		r.PyTorchError = err.Error()
	}
	if r.OK {
		r.Normalized = p.cfg.Format(p.v)
		r.Notes = p.notes
		return p.cfg, r
	}
	if err == nil {
		meaning := lenient.Format(p.v)
		if meaning == "" {
			meaning = "the defaults"
		}
		r.Notes = append(r.Notes, fmt.Sprintf("PyTorch %s takes this string without a word and reads it as: %s", p.v, meaning))
	}
	if repair && p.fixable {
		var kept []string
		for _, f := range p.fixed {
			if f != "" {
				kept = append(kept, f)
			}
		}
		fixed := strings.Join(kept, ",")
		if _, again := parse(fixed, p.v, false); again.OK {
			r.Fixable, r.Fixed = true, fixed
		}
	}
	return p.cfg, r
}

// quote quotes a piece of the source.
func quote(s string) string { return text.Quote(s, 40) }
