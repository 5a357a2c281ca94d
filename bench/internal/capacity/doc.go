// Package capacity says what a fleet needs. Predict takes the measured Costs of single operations and the Load of a
// fleet, and returns the commands, processor time, memory and connections of each server and of each process.
//
// Predict is a pure function. Package trial measures Costs, and runs a Load on real servers to check a prediction.
//
// # What adds up
//
// A rate of the Load times a Cost is a part of the need. All parts of one server add up. There are three exceptions:
//
//	processor time of a server   a busy server reads several commands at a time, so that a command costs less: see Floor
//	renewals                     they travel in batches: the more locks a process holds, the larger the batches
//	a check by the keeper        each check of many locks shares its round trips with the other checks of the batch
//
// # What depends on the machine
//
// Processor time depends on the machine, and so does every figure with "micros" in its name. Costs.Floor has the
// processor time of a bare SET on the machine that the Costs are from. On another machine, measure the Costs there. The
// ratio of the Floors as Load.Machine is a rough guess: a SET alone is nearly all wake-up, whose time changes with the hour.
// Commands, bytes and connections do not depend on the machine.
package capacity
