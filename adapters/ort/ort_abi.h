/* ONNX Runtime's C interface, declared here because its headers need not be installed where attune is built. ONNX
 * Runtime is not linked: it passes its tables of functions to the entry points of this library.
 *
 * OrtApi and OrtEpApi are structs of function pointers that only grow at their end, in the order of onnxruntime_c_api.h
 * and onnxruntime_ep_c_api.h. Assertions check the slot of each member below; gaps are functions that attune does not
 * call. Members have ONNX Runtime's names. */
#ifndef ATTUNE_ORT_ABI_H
#define ATTUNE_ORT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opaque. A status of NULL is success; the receiver owns any other status. */
typedef struct ort_status ort_status;
typedef struct ort_value ort_value;
typedef struct ort_shape ort_shape; /* OrtTensorTypeAndShapeInfo */
typedef struct ort_type_info ort_type_info;
typedef struct ort_value_info ort_value_info;
typedef struct ort_kernel_info ort_kernel_info;
typedef struct ort_kernel_context ort_kernel_context;
typedef struct ort_session_options ort_session_options;
typedef struct ort_domain ort_domain; /* OrtCustomOpDomain */
typedef struct ort_graph ort_graph;
typedef struct ort_node ort_node;
typedef struct ort_attribute ort_attribute; /* OrtOpAttr */
typedef struct ort_logger ort_logger;
typedef struct ort_pairs ort_pairs; /* OrtKeyValuePairs */
typedef struct ort_hardware ort_hardware;
typedef struct ort_device ort_device;   /* OrtEpDevice */
typedef struct ort_support ort_support; /* OrtEpGraphSupportInfo */
typedef struct ort_registry ort_registry;
typedef struct ort_def_builder ort_def_builder;
typedef struct ort_def ort_def; /* OrtKernelDef */
typedef struct ort_data_type ort_data_type;
typedef struct ort_custom_op ort_custom_op;
typedef struct ort_ep ort_ep;
typedef struct ort_factory ort_factory;
typedef struct ort_kernel ort_kernel; /* OrtKernelImpl */
typedef struct ort_ep_api ort_ep_api;
typedef struct ort_model_editor ort_model_editor;
typedef struct ort_compute ort_compute;                 /* OrtNodeComputeInfo */
typedef struct ort_compute_context ort_compute_context; /* OrtNodeComputeContext */

/* OrtErrorCode */
enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 };

/* ONNXTensorElementDataType; also the numbers of types in attributes. */
enum {
    ORT_UNDEFINED = 0,
    ORT_FLOAT = 1,
    ORT_UINT8 = 2,
    ORT_INT8 = 3,
    ORT_INT32 = 6,
    ORT_INT64 = 7,
    ORT_BOOL = 9,
    ORT_FLOAT16 = 10,
    ORT_DOUBLE = 11,
    ORT_BFLOAT16 = 16
};

/* OrtOpAttrType */
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_INTS = 2, ORT_ATTRIBUTE_FLOAT = 3, ORT_ATTRIBUTE_STRING = 5 };

enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 }; /* OrtCustomOpInputOutputCharacteristic */
enum { ORT_MEMORY_DEFAULT = 0 };             /* OrtMemType */
enum { ORT_HARDWARE_CPU = 0 };               /* OrtHardwareDeviceType */

/* The oldest versions of the interface with the functions that are used here. Version N comes with ONNX Runtime 1.N. */
enum { ORT_VERSION_OPS = 17, ORT_VERSION_EP = 24 };

#define ORT_GAP(name, count) void (*name[count])(void)

/* OrtApi */
typedef struct ort_api {
    ort_status *(*CreateStatus)(int code, const char *message);
    ORT_GAP(gap_1, 1);
    const char *(*GetErrorMessage)(const ort_status *status);
    ORT_GAP(gap_3, 23);
    ort_status *(*CreateCustomOpDomain)(const char *name, ort_domain **domain);
    ort_status *(*CustomOpDomain_Add)(ort_domain *domain, const ort_custom_op *op);
    ort_status *(*AddCustomOpDomain)(ort_session_options *options, ort_domain *domain);
    ORT_GAP(gap_29, 22);
    ort_status *(*GetTensorMutableData)(ort_value *value, void **data);
    ORT_GAP(gap_52, 3);
    ort_status *(*CastTypeInfoToTensorInfo)(const ort_type_info *info, const ort_shape **borrowed);
    ORT_GAP(gap_56, 4);
    ort_status *(*GetTensorElementType)(const ort_shape *shape, int *type);
    ort_status *(*GetDimensionsCount)(const ort_shape *shape, size_t *rank);
    ort_status *(*GetDimensions)(const ort_shape *shape, int64_t *dims, size_t rank);
    ort_status *(*GetSymbolicDimensions)(const ort_shape *shape, const char **names, size_t rank);
    ORT_GAP(gap_64, 1);
    ort_status *(*GetTensorTypeAndShape)(const ort_value *value, ort_shape **shape);
    ORT_GAP(gap_66, 19);
    ort_status *(*KernelInfoGetAttribute_float)(const ort_kernel_info *info, const char *name, float *value);
    ort_status *(*KernelInfoGetAttribute_int64)(const ort_kernel_info *info, const char *name, int64_t *value);
    ort_status *(*KernelInfoGetAttribute_string)(const ort_kernel_info *info, const char *name, char *text,
                                                 size_t *size);
    ort_status *(*KernelContext_GetInputCount)(const ort_kernel_context *context, size_t *count);
    ort_status *(*KernelContext_GetOutputCount)(const ort_kernel_context *context, size_t *count);
    ort_status *(*KernelContext_GetInput)(const ort_kernel_context *context, size_t index, const ort_value **value);
    ort_status *(*KernelContext_GetOutput)(ort_kernel_context *context, size_t index, const int64_t *dims, size_t rank,
                                           ort_value **value);
    ORT_GAP(gap_92, 1);
    void (*ReleaseStatus)(ort_status *status);
    ORT_GAP(gap_94, 4);
    void (*ReleaseTypeInfo)(ort_type_info *info);
    void (*ReleaseTensorTypeAndShapeInfo)(ort_shape *shape);
    ORT_GAP(gap_100, 63);
    ort_status *(*KernelInfoGetAttributeArray_int64)(const ort_kernel_info *info, const char *name, int64_t *values,
                                                     size_t *count);
    ORT_GAP(gap_164, 47);
    ort_status *(*CreateOpAttr)(const char *name, const void *data, int count, int type, ort_attribute **attribute);
    void (*ReleaseOpAttr)(ort_attribute *attribute);
    ORT_GAP(gap_213, 17);
    ort_status *(*KernelInfo_GetInputCount)(const ort_kernel_info *info, size_t *count);
    ort_status *(*KernelInfo_GetOutputCount)(const ort_kernel_info *info, size_t *count);
    ort_status *(*KernelInfo_GetInputName)(const ort_kernel_info *info, size_t index, char *name, size_t *size);
    ort_status *(*KernelInfo_GetOutputName)(const ort_kernel_info *info, size_t index, char *name, size_t *size);
    ort_status *(*KernelInfo_GetInputTypeInfo)(const ort_kernel_info *info, size_t index, ort_type_info **type);
    ORT_GAP(gap_235, 3);
    ort_status *(*GetSessionConfigEntry)(const ort_session_options *options, const char *key, char *text, size_t *size);
    ORT_GAP(gap_239, 5);
    ort_status *(*KernelInfo_GetNodeName)(const ort_kernel_info *info, char *name, size_t *size);
    ORT_GAP(gap_245, 4);
    ort_status *(*KernelInfoGetConstantInput_tensor)(const ort_kernel_info *info, size_t index, int *is_constant,
                                                     const ort_value **value);
    ORT_GAP(gap_250, 22);
    ort_status *(*ReadOpAttr)(const ort_attribute *attribute, int type, void *data, size_t bytes, size_t *needed);
    ORT_GAP(gap_273, 1);
    ort_status *(*KernelContext_ParallelFor)(const ort_kernel_context *context, void (*fn)(void *user, size_t index),
                                             size_t total, size_t num_batch, void *user);
    /* The following members are of version 24, for the execution provider only. */
    ORT_GAP(gap_275, 14);
    ort_status *(*GetValueInfoName)(const ort_value_info *value, const char **name);
    ort_status *(*GetValueInfoTypeInfo)(const ort_value_info *value, const ort_type_info **borrowed);
    const ort_model_editor *(*GetModelEditorApi)(void);
    ORT_GAP(gap_292, 15);
    int (*HardwareDevice_Type)(const ort_hardware *hardware);
    ORT_GAP(gap_308, 9);
    const ort_ep_api *(*GetEpApi)(void);
    ORT_GAP(gap_318, 5);
    ort_status *(*ValueInfo_GetValueProducer)(const ort_value_info *value, const ort_node **node, size_t *index);
    ort_status *(*ValueInfo_GetValueNumConsumers)(const ort_value_info *value, size_t *count);
    ort_status *(*ValueInfo_GetValueConsumers)(const ort_value_info *value, const ort_node **nodes, int64_t *indices,
                                               size_t count);
    ort_status *(*ValueInfo_GetInitializerValue)(const ort_value_info *value, const ort_value **constant);
    ORT_GAP(gap_327, 3);
    ort_status *(*ValueInfo_IsGraphOutput)(const ort_value_info *value, bool *is_output);
    ort_status *(*ValueInfo_IsConstantInitializer)(const ort_value_info *value, bool *is_constant);
    ORT_GAP(gap_332, 2);
    ort_status *(*Graph_GetModelPath)(const ort_graph *graph, const char **path);
    ORT_GAP(gap_335, 7);
    ort_status *(*Graph_GetNumInitializers)(const ort_graph *graph, size_t *count);
    ort_status *(*Graph_GetInitializers)(const ort_graph *graph, const ort_value_info **values, size_t count);
    ort_status *(*Graph_GetNumNodes)(const ort_graph *graph, size_t *count);
    ort_status *(*Graph_GetNodes)(const ort_graph *graph, const ort_node **nodes, size_t count);
    ORT_GAP(gap_346, 3);
    ort_status *(*Node_GetName)(const ort_node *node, const char **name);
    ort_status *(*Node_GetOperatorType)(const ort_node *node, const char **type);
    ort_status *(*Node_GetDomain)(const ort_node *node, const char **domain);
    ort_status *(*Node_GetSinceVersion)(const ort_node *node, int *version);
    ort_status *(*Node_GetNumInputs)(const ort_node *node, size_t *count);
    ort_status *(*Node_GetInputs)(const ort_node *node, const ort_value_info **inputs, size_t count);
    ort_status *(*Node_GetNumOutputs)(const ort_node *node, size_t *count);
    ort_status *(*Node_GetOutputs)(const ort_node *node, const ort_value_info **outputs, size_t count);
    ORT_GAP(gap_357, 2);
    ort_status *(*Node_GetNumAttributes)(const ort_node *node, size_t *count);
    ort_status *(*Node_GetAttributes)(const ort_node *node, const ort_attribute **attributes, size_t count);
    ORT_GAP(gap_361, 3);
    ort_status *(*OpAttr_GetName)(const ort_attribute *attribute, const char **name);
} ort_api;

#define ORT_SLOT(table, member, slot)                                                                                  \
    _Static_assert(offsetof(table, member) == (slot) * sizeof(void *), #member " is in another slot")
ORT_SLOT(ort_api, GetErrorMessage, 2);
ORT_SLOT(ort_api, CreateCustomOpDomain, 26);
ORT_SLOT(ort_api, AddCustomOpDomain, 28);
ORT_SLOT(ort_api, GetTensorMutableData, 51);
ORT_SLOT(ort_api, CastTypeInfoToTensorInfo, 55);
ORT_SLOT(ort_api, GetTensorElementType, 60);
ORT_SLOT(ort_api, GetSymbolicDimensions, 63);
ORT_SLOT(ort_api, GetTensorTypeAndShape, 65);
ORT_SLOT(ort_api, KernelInfoGetAttribute_float, 85);
ORT_SLOT(ort_api, KernelContext_GetInputCount, 88);
ORT_SLOT(ort_api, KernelContext_GetOutput, 91);
ORT_SLOT(ort_api, ReleaseStatus, 93);
ORT_SLOT(ort_api, ReleaseTypeInfo, 98);
ORT_SLOT(ort_api, KernelInfoGetAttributeArray_int64, 163);
ORT_SLOT(ort_api, CreateOpAttr, 211);
ORT_SLOT(ort_api, KernelInfo_GetInputCount, 230);
ORT_SLOT(ort_api, KernelInfo_GetInputTypeInfo, 234);
ORT_SLOT(ort_api, GetSessionConfigEntry, 238);
ORT_SLOT(ort_api, KernelInfo_GetNodeName, 244);
ORT_SLOT(ort_api, KernelInfoGetConstantInput_tensor, 249);
ORT_SLOT(ort_api, ReadOpAttr, 272);
ORT_SLOT(ort_api, KernelContext_ParallelFor, 274);
ORT_SLOT(ort_api, GetValueInfoName, 289);
ORT_SLOT(ort_api, GetModelEditorApi, 291);
ORT_SLOT(ort_api, HardwareDevice_Type, 307);
ORT_SLOT(ort_api, GetEpApi, 317);
ORT_SLOT(ort_api, ValueInfo_GetValueProducer, 323);
ORT_SLOT(ort_api, ValueInfo_IsGraphOutput, 330);
ORT_SLOT(ort_api, Graph_GetModelPath, 334);
ORT_SLOT(ort_api, Graph_GetNumInitializers, 342);
ORT_SLOT(ort_api, Graph_GetNumNodes, 344);
ORT_SLOT(ort_api, Node_GetName, 349);
ORT_SLOT(ort_api, Node_GetOperatorType, 350);
ORT_SLOT(ort_api, Node_GetNumAttributes, 359);
ORT_SLOT(ort_api, OpAttr_GetName, 364);

/* OrtApiBase */
typedef struct ort_base {
    const ort_api *(*GetApi)(uint32_t version); /* NULL: ONNX Runtime is older */
    const char *(*GetVersionString)(void);
} ort_base;

typedef ort_status *ort_create_kernel_fn(void *state, const ort_kernel_info *info, ort_kernel **kernel);

/* OrtNodeFusionOptions of version 24 */
typedef struct ort_fusion_options {
    uint32_t version;
    bool drop_constant_initializers; /* the fused node does not get them as inputs */
} ort_fusion_options;

/* OrtModelEditorApi, since version 22 */
struct ort_model_editor {
    ORT_GAP(gap_0, 6);
    /* Copies the attributes. */
    ort_status *(*CreateNode)(const char *type, const char *domain, const char *name, const char *const *inputs,
                              size_t num_inputs, const char *const *outputs, size_t num_outputs,
                              ort_attribute **attributes, size_t num_attributes, ort_node **node);
};
ORT_SLOT(ort_model_editor, CreateNode, 6);

/* OrtEpApi, since version 24 */
struct ort_ep_api {
    ort_status *(*CreateEpDevice)(ort_factory *factory, const ort_hardware *hardware, const ort_pairs *metadata,
                                  const ort_pairs *options, ort_device **device);
    ORT_GAP(gap_1, 1);
    ort_status *(*EpGraphSupportInfo_AddNodesToFuse)(ort_support *support, const ort_node *const *nodes, size_t count,
                                                     const ort_fusion_options *options);
    ort_status *(*EpGraphSupportInfo_AddSingleNode)(ort_support *support, const ort_node *node);
    ORT_GAP(gap_4, 14);
    ort_status *(*CreateKernelRegistry)(ort_registry **registry);
    void (*ReleaseKernelRegistry)(ort_registry *registry);
    ort_status *(*KernelRegistry_AddKernel)(ort_registry *registry, const ort_def *def, ort_create_kernel_fn *create,
                                            void *state);
    ort_status *(*CreateKernelDefBuilder)(ort_def_builder **builder);
    void (*ReleaseKernelDefBuilder)(ort_def_builder *builder);
    ort_status *(*KernelDefBuilder_SetOperatorType)(ort_def_builder *builder, const char *type);
    ort_status *(*KernelDefBuilder_SetDomain)(ort_def_builder *builder, const char *domain);
    ort_status *(*KernelDefBuilder_SetSinceVersion)(ort_def_builder *builder, int first, int last);
    ort_status *(*KernelDefBuilder_SetExecutionProvider)(ort_def_builder *builder, const char *provider);
    ORT_GAP(gap_27, 2);
    ort_status *(*KernelDefBuilder_AddTypeConstraint)(ort_def_builder *builder, const char *name,
                                                      const ort_data_type *const *types, size_t count);
    ORT_GAP(gap_30, 2);
    ort_status *(*KernelDefBuilder_Build)(ort_def_builder *builder, ort_def **def);
    void (*ReleaseKernelDef)(ort_def *def);
    ORT_GAP(gap_34, 6);
    ort_status *(*GetTensorDataType)(int type, const ort_data_type **data_type);
    ort_status *(*EpGraphSupportInfo_LookUpKernel)(ort_support *support, const ort_node *node, const ort_def **def);
};
ORT_SLOT(ort_ep_api, EpGraphSupportInfo_AddNodesToFuse, 2);
ORT_SLOT(ort_ep_api, EpGraphSupportInfo_AddSingleNode, 3);
ORT_SLOT(ort_ep_api, CreateKernelRegistry, 18);
ORT_SLOT(ort_ep_api, KernelRegistry_AddKernel, 20);
ORT_SLOT(ort_ep_api, KernelDefBuilder_SetOperatorType, 23);
ORT_SLOT(ort_ep_api, KernelDefBuilder_SetExecutionProvider, 26);
ORT_SLOT(ort_ep_api, KernelDefBuilder_AddTypeConstraint, 29);
ORT_SLOT(ort_ep_api, KernelDefBuilder_Build, 32);
ORT_SLOT(ort_ep_api, EpGraphSupportInfo_LookUpKernel, 41);

/* ---- Tables that attune provides. Functions that are not set are optional ---- */

/* OrtCustomOp of version 17: ONNX Runtime reads no later members. */
struct ort_custom_op {
    uint32_t version;
    void *(*CreateKernel)(const ort_custom_op *op, const ort_api *api, const ort_kernel_info *info);
    const char *(*GetName)(const ort_custom_op *op);
    const char *(*GetExecutionProviderType)(const ort_custom_op *op);
    int (*GetInputType)(const ort_custom_op *op, size_t index);
    size_t (*GetInputTypeCount)(const ort_custom_op *op);
    int (*GetOutputType)(const ort_custom_op *op, size_t index);
    size_t (*GetOutputTypeCount)(const ort_custom_op *op);
    void (*KernelCompute)(void *kernel, ort_kernel_context *context);
    void (*KernelDestroy)(void *kernel);
    int (*GetInputCharacteristic)(const ort_custom_op *op, size_t index);
    int (*GetOutputCharacteristic)(const ort_custom_op *op, size_t index);
    int (*GetInputMemoryType)(const ort_custom_op *op, size_t index);
    int (*GetVariadicInputMinArity)(const ort_custom_op *op);
    int (*GetVariadicInputHomogeneity)(const ort_custom_op *op);
    int (*GetVariadicOutputMinArity)(const ort_custom_op *op);
    int (*GetVariadicOutputHomogeneity)(const ort_custom_op *op);
    ort_status *(*CreateKernelV2)(const ort_custom_op *op, const ort_api *api, const ort_kernel_info *info,
                                  void **kernel);
    ort_status *(*KernelComputeV2)(void *kernel, ort_kernel_context *context);
    ort_status *(*InferOutputShapeFn)(const ort_custom_op *op, void *context);
    int (*GetStartVersion)(const ort_custom_op *op);
    int (*GetEndVersion)(const ort_custom_op *op);
};
ORT_SLOT(ort_custom_op, CreateKernelV2, 17);
ORT_SLOT(ort_custom_op, GetEndVersion, 21);

/* OrtKernelImpl of version 24 */
struct ort_kernel {
    uint32_t version;
    uint32_t flags; /* 0 */
    ort_status *(*Compute)(ort_kernel *kernel, ort_kernel_context *context);
    void (*Release)(ort_kernel *kernel);
    void (*PrePackWeight)(void);
    void (*SetSharedPrePackedWeight)(void);
};

/* OrtNodeComputeInfo of version 24: how a fused node is computed. A state belongs to a session. */
struct ort_compute {
    uint32_t version;
    ort_status *(*CreateState)(ort_compute *compute, ort_compute_context *context, void **state);
    ort_status *(*Compute)(ort_compute *compute, void *state, ort_kernel_context *context);
    void (*ReleaseState)(ort_compute *compute, void *state);
};

/* OrtEp of version 24 */
struct ort_ep {
    uint32_t version;
    const char *(*GetName)(const ort_ep *ep);
    ort_status *(*GetCapability)(ort_ep *ep, const ort_graph *graph, ort_support *support);
    ort_status *(*Compile)(ort_ep *ep, const ort_graph **graphs, const ort_node **fused, size_t count,
                           ort_compute **computes, ort_node **context_nodes);
    void (*ReleaseNodeComputeInfos)(ort_ep *ep, ort_compute **computes, size_t count);
    ORT_GAP(unused, 8); /* GetPreferredDataLayout to GetCompiledModelCompatibilityInfo */
    ort_status *(*GetKernelRegistry)(ort_ep *ep, const ort_registry **registry);
    void (*IsConcurrentRunSupported)(void); /* not set: it is */
};
ORT_SLOT(ort_ep, Compile, 3);
ORT_SLOT(ort_ep, GetKernelRegistry, 13);

/* OrtEpFactory of version 24 */
struct ort_factory {
    uint32_t version;
    const char *(*GetName)(const ort_factory *factory);
    const char *(*GetVendor)(const ort_factory *factory);
    ort_status *(*GetSupportedDevices)(ort_factory *factory, const ort_hardware *const *hardware, size_t num_hardware,
                                       ort_device **devices, size_t max_devices, size_t *num_devices);
    ort_status *(*CreateEp)(ort_factory *factory, const ort_hardware *const *hardware, const ort_pairs *const *metadata,
                            size_t num_devices, const ort_session_options *options, const ort_logger *logger,
                            ort_ep **ep);
    void (*ReleaseEp)(ort_factory *factory, ort_ep *ep);
    uint32_t (*GetVendorId)(const ort_factory *factory);
    const char *(*GetVersion)(const ort_factory *factory);
    ORT_GAP(unused, 3); /* ValidateCompiledModelCompatibilityInfo to ReleaseAllocator */
    ort_status *(*CreateDataTransfer)(ort_factory *factory, void **transfer);
    bool (*IsStreamAware)(const ort_factory *factory);
    ORT_GAP(unused_13, 3); /* CreateSyncStreamForDevice to CreateExternalResourceImporterForDevice */
    ort_status *(*GetNumCustomOpDomains)(ort_factory *factory, size_t *count);
    ort_status *(*GetCustomOpDomains)(ort_factory *factory, ort_domain **domains, size_t count);
};
ORT_SLOT(ort_factory, ReleaseEp, 5);
ORT_SLOT(ort_factory, CreateDataTransfer, 11);
ORT_SLOT(ort_factory, GetCustomOpDomains, 17);

#endif
