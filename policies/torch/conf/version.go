package conf

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Version is a PyTorch release, major and minor. The zero Version stands for
// [Latest] wherever a Version is taken.
type Version struct {
	Major, Minor int
}

// Latest is the newest release whose rules this package knows in full.
var Latest = Version{2, 11}

// oldest is the first release that reads a configuration string.
var oldest = Version{1, 9}

// ParseVersion reads what torch.__version__ prints: "2.11.0+cu130", "2.6",
// "v1.13.1", "2.12.0a0+git1234". Only major and minor are kept.
func ParseVersion(s string) (Version, error) {
	major, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(s), "v"), ".")
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	maj, err1 := strconv.ParseUint(major, 10, 16)
	mnr, err2 := strconv.ParseUint(rest[:end], 10, 16)
	if !ok || err1 != nil || err2 != nil || end < len(rest) && !strings.ContainsRune(".+ar-", rune(rest[end])) {
		return Version{}, fmt.Errorf("PyTorch version %q: write it as 2.11 or 2.11.0+cu130", s)
	}
	return Version{int(maj), int(mnr)}, nil
}

// String is "2.11".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Compare orders releases.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor))
}

// AtLeast reports whether v is release major.minor or a newer one.
func (v Version) AtLeast(major, minor int) bool {
	return v.Compare(Version{major, minor}) >= 0
}

func (v Version) orLatest() Version {
	if v == (Version{}) {
		return Latest
	}
	return v
}

// Rules are the differences between releases that change what an allocator
// does with the same Config (spec pytorch-allocator A2.2, A3.1, A9).
type Rules struct {
	// DivisionsOneUnrounded: with 1 division a request that is no power of two
	// keeps its raw size (PyTorch ≤ 2.3, pull request 126830).
	DivisionsOneUnrounded bool
	// FractionOneLimits: a memory fraction of 1.0 is a limit of the whole
	// device, so that garbage collection works with it (PyTorch ≤ 2.9). Later
	// 1.0 means no limit.
	FractionOneLimits bool
	// CollectsExpandable: garbage collection and the targeted release also try
	// expandable blocks (PyTorch ≤ 2.4, pull request 134338).
	CollectsExpandable bool
}

// Rules are those of release v.
func (v Version) Rules() Rules {
	v = v.orLatest()
	return Rules{
		DivisionsOneUnrounded: !v.AtLeast(2, 4),
		FractionOneLimits:     !v.AtLeast(2, 10),
		CollectsExpandable:    !v.AtLeast(2, 5),
	}
}

// sharedParser reports whether the CUDA allocator reads its string with the
// tokenizer shared by all accelerators. Before, it had a stricter one of its
// own.
func (v Version) sharedParser() bool { return v.AtLeast(2, 10) }

// fillsAfterLast reports whether ">" in a rounding list starts behind the last
// listed interval rather than at it (spec pytorch-allocator A6.5).
func (v Version) fillsAfterLast() bool { return v.sharedParser() }

// minSplitMiB is the smallest max_split_size_mb that v takes when a large
// segment has large bytes.
func (v Version) minSplitMiB(large int64) int64 {
	if v.sharedParser() {
		return large / mib
	}
	return large/mib + 1
}
