package gpus_test

import (
	"fmt"
	"strings"

	"allocsim/planner/gpus"
)

// Names are taken as people write them, and a name that could be several cards
// is not guessed.
func ExampleFind() {
	for _, name := range []string{"4090", "NVIDIA A100-SXM4-80GB", "h100:1g.10gb", "a100"} {
		card, err := gpus.Find(name)
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		low, high, _ := card.Usable()
		fmt.Printf("%s: %.2f to %.2f GiB for the allocator\n", card.Name, float64(low)/(1<<30), float64(high)/(1<<30))
	}
	// Output:
	// RTX 4090: 23.05 to 23.45 GiB for the allocator
	// A100-SXM4-80GB: 78.60 to 78.96 GiB for the allocator
	// H100 SXM5 80GB:1g.10gb: 9.00 to 9.64 GiB for the allocator
	// error: GPU "a100" could be any of: A100-PCIE-40GB, A100-SXM4-40GB, A100-PCIE-80GB, A100-SXM4-80GB
}

// A card is a range, so there is a verdict between yes and no.
func ExampleCard_Assess() {
	card, err := gpus.Find("RTX 3090")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, mib := range []int64{20000, 23400, 24100} {
		a := card.Assess(mib << 20)
		fmt.Printf("%d MiB: %s (%s)\n", mib, a.Verdict, a.Reason)
	}
	// Output:
	// 20000 MiB: fits (3.56 GiB of headroom)
	// 23400 MiB: tight (243 MiB of headroom is less than the 480 MiB that driver and libraries may take)
	// 24100 MiB: no (needs 31.69 MiB more than the card can give at best)
}

// One's own reading of a card beats the catalogue.
func ExampleCatalogue_Extend() {
	cat, err := gpus.Default().Extend(strings.NewReader("name,reported_bytes,context_low,context_high\nRTX 4090,25252724736,430MiB,450MiB\n"), "mine.csv")
	if err != nil {
		fmt.Println(err)
		return
	}
	card, err := cat.Find("rtx 4090")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(card.Name, card.Confidence)
	// Output:
	// RTX 4090 measured
}
