package conf

import "testing"

// TestReleases: a release takes the keys and values that it was the first to
// take, and the release before does not. The releases are those of PyTorch's
// own history (spec pytorch-allocator A6.4 and A9), which both readers must
// follow.
func TestReleases(t *testing.T) {
	for _, c := range []struct {
		s            string
		since, until Version // until: the last release; zero = still taken
	}{
		{"garbage_collection_threshold:0.8", Version{1, 12}, Version{}},
		{"roundup_power2_divisions:4", Version{1, 12}, Version{}},
		{"roundup_bypass_threshold_mb:64", Version{1, 13}, Version{1, 13}},
		{"roundup_power2_divisions:[64:8]", Version{2, 0}, Version{}},
		{"backend:native", Version{2, 0}, Version{}},
		{"expandable_segments:True", Version{2, 1}, Version{}},
		{"release_lock_on_cudamalloc:True", Version{2, 2}, Version{}},
		{"release_lock_on_hipmalloc:True", Version{2, 2}, Version{}},
		{"pinned_use_cuda_host_register:True", Version{2, 2}, Version{}},
		{"pinned_use_hip_host_register:True", Version{2, 2}, Version{}},
		{"pinned_num_register_threads:8", Version{2, 2}, Version{}},
		{"pinned_use_background_threads:True", Version{2, 5}, Version{}},
		{"max_non_split_rounding_mb:64", Version{2, 6}, Version{}},
		{"graph_capture_record_stream_reuse:True", Version{2, 9}, Version{}},
		{"pinned_reserve_segment_size_mb:64", Version{2, 9}, Version{}},
		{"per_process_memory_fraction:0.9", Version{2, 10}, Version{}},
		{"max_split_size_mb:20", Version{2, 10}, Version{}},
		{"max_split_size_mb:\t128", Version{2, 10}, Version{}},
		{"large_segment_size_mb:40", Version{2, 11}, Version{}},
		{"expandable_segments:True,max_non_split_rounding_mb:64,max_split_size_mb:128", Version{2, 6}, Version{}},
	} {
		for _, v := range releases() {
			want := v.Compare(c.since) >= 0 && (c.until == Version{} || v.Compare(c.until) <= 0)
			_, r := Parse(c.s, v)
			if r.OK != want {
				t.Errorf("%q for %s: OK is %v, %v", c.s, v, r.OK, r.Errors)
			}
			if _, err := ParseLenient(c.s, v); (err == nil) != want {
				t.Errorf("%q for %s as PyTorch: %v", c.s, v, err)
			}
			if want && c.s != "max_split_size_mb:\t128" && r.Since != c.since.String() {
				t.Errorf("%q for %s: since %s, want %s", c.s, v, r.Since, c.since)
			}
		}
	}
}

// releases are those from the first that reads a string to the latest.
func releases() []Version {
	all := []Version{{1, 9}, {1, 10}, {1, 11}, {1, 12}, {1, 13}}
	for minor := range 12 {
		all = append(all, Version{2, minor})
	}
	return all
}

// TestRules: the last release with each of the old rules (spec
// pytorch-allocator A9: pull requests 126830, 161035, 134338).
func TestRules(t *testing.T) {
	for _, v := range releases() {
		want := Rules{
			DivisionsOneUnrounded: v.Compare(Version{2, 3}) <= 0,
			FractionOneLimits:     v.Compare(Version{2, 9}) <= 0,
			CollectsExpandable:    v.Compare(Version{2, 4}) <= 0,
		}
		if got := v.Rules(); got != want {
			t.Errorf("%s: %+v, want %+v", v, got, want)
		}
	}
	if (Version{}).Rules() != Latest.Rules() {
		t.Error("the zero version is not the latest")
	}
}

// TestRoundupInterval: interval k is [2^k, 2^(k+1)) MiB, and the two at the
// ends are open.
func TestRoundupInterval(t *testing.T) {
	for _, size := range []int64{1, 512, mib, 2*mib - 1} {
		if got := RoundupInterval(size); got != 0 {
			t.Errorf("%d bytes: interval %d, want 0", size, got)
		}
	}
	for k := 1; k < Intervals; k++ {
		low := int64(mib) << k
		if got := RoundupInterval(low); got != k {
			t.Errorf("%d bytes: interval %d, want %d", low, got, k)
		}
		if got := RoundupInterval(low - 1); got != k-1 {
			t.Errorf("%d bytes: interval %d, want %d", low-1, got, k-1)
		}
	}
	if got := RoundupInterval(1 << 60); got != Intervals-1 {
		t.Errorf("2^60 bytes: interval %d", got)
	}
}

// TestCachingOff: up to 2.6 the variable counts when it is there; later only
// as 1 (spec pytorch-allocator A2.1).
func TestCachingOff(t *testing.T) {
	for _, v := range releases() {
		for value, since27 := range map[string]bool{"1": true, "0": false, "": false} {
			want := since27 || v.Compare(Version{2, 6}) <= 0
			if got := FromEnv(map[string]string{varNoCaching: value}, v, false); got.CachingOff != want {
				t.Errorf("%q in %s: caching off is %v", value, v, got.CachingOff)
			}
		}
		if FromEnv(nil, v, false).CachingOff {
			t.Errorf("caching is off in %s by itself", v)
		}
	}
}

// TestLargeSegmentFirst: PyTorch 2.11 looks for large_segment_size_mb before
// all other keys, and the slack that is not given follows it. So the order of
// the keys does not matter.
func TestLargeSegmentFirst(t *testing.T) {
	want := Default(Latest)
	want.LargeSegmentSize, want.MaxNonSplitRounding, want.MaxSplitSize = 12*mib, 12*mib, 12*mib
	for _, s := range []string{"large_segment_size_mb:12,max_split_size_mb:12", "max_split_size_mb:12,large_segment_size_mb:12"} {
		if got, err := ParseLenient(s, Latest); err != nil || got != want {
			t.Errorf("%q as PyTorch: %+v, %v", s, got, err)
		}
		if got, r := Parse(s, Latest); !r.OK || got != want {
			t.Errorf("%q: %+v, %v", s, got, r.Errors)
		}
	}
	if _, err := ParseLenient("max_split_size_mb:39,large_segment_size_mb:40", Latest); err == nil {
		t.Error("max_split_size_mb below the segment size is taken when it comes first")
	}
}

// TestLastWins: of two equal keys the last one counts (spec pytorch-allocator
// A6.2).
func TestLastWins(t *testing.T) {
	for _, v := range releases() {
		c, err := ParseLenient("max_split_size_mb:64,max_split_size_mb:128", v)
		if err != nil || c.MaxSplitSize != 128*mib {
			t.Errorf("%s: %d, %v", v, c.MaxSplitSize, err)
		}
	}
}
