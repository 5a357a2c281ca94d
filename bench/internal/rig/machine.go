package rig

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// Machine is where a measurement was made.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// ThisMachine describes the machine; what cannot be found out is "unknown".
func ThisMachine() Machine {
	return Machine{
		CPU:    field("/proc/cpuinfo", "model name"),
		Cores:  runtime.NumCPU(),
		Kernel: runtime.GOOS + " " + contents("/proc/sys/kernel/osrelease"),
		Go:     runtime.Version() + " " + runtime.GOARCH,
	}
}

const unknown = "unknown"

func contents(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(text))
}

// field returns the value of the first "name : value" line of a file.
func field(path, name string) string {
	for line := range strings.Lines(contents(path)) {
		if key, val, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(val)
		}
	}
	return unknown
}

// Versions returns the versions of the named modules as they are compiled in.
func Versions(modules ...string) map[string]string {
	out := make(map[string]string, len(modules))
	for _, m := range modules {
		out[m] = unknown
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return out
	}
	for _, dep := range info.Deps {
		if _, asked := out[dep.Path]; !asked {
			continue
		}
		if dep.Replace != nil && dep.Replace.Version != "" {
			dep = dep.Replace
		}
		out[dep.Path] = dep.Version
	}
	return out
}

// LoadAverage is how many processes wanted a processor in the last minute, as the kernel has
// it, or "unknown".
func LoadAverage() string {
	first, _, _ := strings.Cut(contents("/proc/loadavg"), " ")
	return first
}
