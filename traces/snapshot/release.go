package snapshot

// release is a key of a snapshot and the PyTorch release that first wrote it
// (spec pytorch-allocator B6), oldest first.
type release struct {
	since string
	has   func(r *records, settings map[string]string) bool
}

var releases = []release{
	{"2.1", func(r *records, _ map[string]string) bool {
		return r.stateKeys&(1<<kIsExpandable|1<<kSegmentPoolID) != 0
	}},
	{"2.2", func(r *records, _ map[string]string) bool { return r.entryKeys&(1<<kTimeUS) != 0 }},
	{"2.3", func(r *records, _ map[string]string) bool { return r.rootSeen[2] }},
	{"2.5", func(r *records, _ map[string]string) bool { return r.rootSeen[3] }},
	{"2.8", func(r *records, _ map[string]string) bool { return r.entryKeys&(1<<kCompileContext) != 0 }},
	{"2.9", func(_ *records, s map[string]string) bool { _, ok := s["graph_capture_record_stream_reuse"]; return ok }},
	{"2.10", func(r *records, _ map[string]string) bool { return r.entryKeys&(1<<kUserMetadata) != 0 }},
	{"2.12", func(r *records, _ map[string]string) bool { return r.entryKeys&(1<<kPoolID) != 0 }},
}

// releases bounds the release that wrote the snapshot: the newest key that it
// has, and the first one after that which it has not. A key that is missing
// proves something only where entries could have it.
func (r *records) releases(settings map[string]string) (since, before string) {
	newest := -1
	for i, k := range releases {
		if k.has(r, settings) {
			newest = i
		}
	}
	if newest >= 0 {
		since = releases[newest].since
	}
	if r.entryKeys != 0 && newest+1 < len(releases) {
		before = releases[newest+1].since
	}
	return since, before
}
