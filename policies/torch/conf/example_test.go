package conf_test

import (
	"fmt"

	"allocsim/policies/torch/conf"
)

// Parse says where a mistake is and how to mend it.
func ExampleParse() {
	text := "max_split_size_mb=128"
	_, res := conf.Parse(text, conf.Latest)
	for _, p := range res.Errors {
		fmt.Println(p.Message)
		fmt.Println(conf.Mark(text, p))
	}
	fmt.Println("repaired:", res.Fixed)
	// Output:
	// '=' where ':' belongs
	// max_split_size_mb=128
	//                  ^
	// repaired: max_split_size_mb:128
}

// The release decides which keys there are.
func ExampleParse_version() {
	for _, v := range []conf.Version{{Major: 2, Minor: 0}, {Major: 2, Minor: 11}} {
		_, res := conf.Parse("expandable_segments:True", v)
		fmt.Println(v, res.OK)
		for _, p := range res.Errors {
			fmt.Println("  " + p.Message)
		}
	}
	// Output:
	// 2.0 false
	//   expandable_segments needs PyTorch 2.1 or newer; 2.0 stops with "Unrecognized CachingAllocator option: expandable_segments"
	// 2.11 true
}
